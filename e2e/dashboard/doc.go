// SPDX-License-Identifier: Apache-2.0

// Package dashboard tests the dashboard in a real browser, with an API server of simulated nodes.
package dashboard
