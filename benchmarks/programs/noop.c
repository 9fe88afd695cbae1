/* The shortest program there is: what is measured is the system that starts it. */
int main(void) { return 0; }
