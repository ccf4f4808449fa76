// SPDX-License-Identifier: Apache-2.0

// Package browser holds a headless Chromium for tests, driven by its DevTools protocol over a pipe
// (https://chromedevtools.github.io/devtools-protocol).
package browser
