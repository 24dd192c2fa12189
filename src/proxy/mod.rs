//! proxy
mod budget;
mod connect;
mod io;
mod payload;
mod pool;
mod upstream;
