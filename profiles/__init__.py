"""What is asked: strict models of a sweep file, its inheritance and secrets, and the ready-made workloads."""
