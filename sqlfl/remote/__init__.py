"""What goes between machines, and the parties' end of it: keys, frames, streams, and the agent."""
