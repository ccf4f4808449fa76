// SPDX-License-Identifier: Apache-2.0

// Command testrun runs the project's tests: those that tell whether it works here (make test), or all there are (make
// test-all). It says what runs and how much is left, runs a test that failed once more, alone, after the others, and ends with
// what failed, what is flaky, and what took longest.
package main
