# GAPLESS_SANITIZE=address,undefined or GAPLESS_SANITIZE=thread applies to every target.
if(GAPLESS_SANITIZE)
  add_compile_options(-fsanitize=${GAPLESS_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${GAPLESS_SANITIZE})
  add_compile_definitions(GAPLESS_SANITIZED)  # loads are smaller
endif()
