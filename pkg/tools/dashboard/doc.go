// SPDX-License-Identifier: Apache-2.0

// Package dashboard holds the pages that show a fleet in a browser. A page is built of fragments, which a live page gets again by
// Server-Sent Events when they change. It answers GET requests only, and loads nothing from elsewhere.
package dashboard
