// SPDX-License-Identifier: Apache-2.0

// Package protocol is what the test tells the plugin that it kills, one JSON document per line.
package protocol

// Verb is what the plugin is asked to do.
type Verb string

// The verbs.
const (
	Prepare   Verb = "prepare"
	Unprepare Verb = "unprepare"
	// Take has the process that was opened alongside take over, as in a rolling update.
	Take Verb = "take"
)

// Request is a call of the kubelet.
type Request struct {
	Verb    Verb     `json:"verb"`
	Claim   string   `json:"claim,omitempty"`
	Devices []string `json:"devices,omitempty"`
	// KillAt is the step at which the process kills itself, counted from the request, OpenAt the one at which another plugin
	// is opened alongside; zero for never.
	KillAt int `json:"killAt,omitempty"`
	OpenAt int `json:"openAt,omitempty"`
}

// Device is a device that was prepared.
type Device struct {
	Name string   `json:"name"`
	CDI  []string `json:"cdi"`
}

// Answer is what came of a request, or of the start.
type Answer struct {
	Error   string   `json:"error,omitempty"`
	Devices []Device `json:"devices,omitempty"`
}
