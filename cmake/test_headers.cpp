int main() {}  // a precompiled header belongs to a program that compiles something
