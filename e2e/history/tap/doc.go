// SPDX-License-Identifier: Apache-2.0

// Package tap records what a kubelet asks of a DRA plugin, and what the plugin answers, without either knowing.
//
// The plugin registers in a directory of its own, and for each of its registration sockets there is another in the kubelet's
// directory, which names a socket of the tap as the plugin's endpoint. Connections to that socket are passed on byte by byte,
// and read along: a plugin that is killed and started again, or two of a rolling update, look to the kubelet as they are.
package tap
