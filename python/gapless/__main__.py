"""python -m gapless"""

from ._binary import main

main()
