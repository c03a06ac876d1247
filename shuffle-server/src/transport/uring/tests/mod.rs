mod death;
mod extents;
mod in_flight;
mod memory;
mod plan;
mod sender;
mod sockets;
mod threshold;
