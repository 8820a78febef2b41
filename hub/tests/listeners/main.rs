//! The mTLS listeners against clients that lie, over real sockets. No database: nobody here gets as far as one.

mod attacks;
mod hub;
mod services;
mod transport;
