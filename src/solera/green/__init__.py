"""What computing costs: energy and emissions of tasks, clients, rounds and studies."""
