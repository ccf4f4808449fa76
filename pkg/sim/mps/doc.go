// SPDX-License-Identifier: Apache-2.0

// Package mps is NVIDIA's Multi-Process Service of a simulated node: the control daemon, its servers, the control client, and the
// part of the CUDA driver in client programs.
//
// As with the real one, the daemon ([Run]) listens on the socket "control" of a pipe directory. It starts a server, a process of
// its own ([Serve]), for the first program that connects, and hands programs over to it: the server then has the program's
// connection, decides whether to accept it and with which limits, and holds the GPUs of the node. A server whose daemon has died
// ends, and so do the programs that it serves.
package mps
