// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseCommand(t *testing.T) {
	tests := []struct {
		line string
		want command // timeout -1 is filled in where it is 0
	}{
		{"start_server -uid 1000", command{uid: 1000}},
		{"shutdown_server", command{}},
		{"shutdown_server 7 -f", command{server: 7, force: true}},
		{"shutdown_server -f 7", command{server: 7, force: true}},
		{"get_server_list", command{}},
		{"  get_server_status   12 ", command{server: 12}},
		{"get_client_list 12", command{server: 12}},
		{"ps", command{}},
		{"ps -p 3", command{server: 3}},
		{"get_default_active_thread_percentage", command{}},
		{"set_default_active_thread_percentage 12.5", command{percentage: 12.5}},
		{"get_active_thread_percentage 3", command{server: 3}},
		{"set_active_thread_percentage 3 100", command{server: 3, percentage: 100}},
		{"get_default_device_pinned_mem_limit 0", command{device: "0"}},
		{"set_default_device_pinned_mem_limit GPU-x 10G", command{device: "GPU-x", bytes: 10 << 30}},
		{"get_device_pinned_mem_limit 3 GPU-x", command{server: 3, device: "GPU-x"}},
		{"set_device_pinned_mem_limit 1024 0 900M", command{server: 1024, device: "0", bytes: 900 << 20}},
		{"terminate_client 123 1024", command{server: 123, client: 1024}},
		{"device_query", command{}},
		{"device_query 5 --csv", command{server: 5, csv: true}},
		{"quit", command{}},
		{"quit -t 3", command{timeout: 3 * time.Second}},
		{"quit -t 0", command{timeout: -2}},
		{"simulate_fault", command{}},
		{"simulate_fault 9", command{server: 9}},
	}
	for _, tt := range tests {
		want := tt.want
		want.name = strings.Fields(tt.line)[0]
		switch want.timeout {
		case 0:
			want.timeout = -1
		case -2:
			want.timeout = 0
		}
		got, err := parseCommand(tt.line)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(command{})); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", tt.line, err, diff)
		}
	}
}

func TestParseCommand_Invalid(t *testing.T) {
	for line, want := range map[string]string{
		"":                                       "empty command",
		"help me":                                `unknown command: "help"`,
		"quit now":                               "want 2, got 1",
		"quit -x 3":                              "want -t SECONDS",
		"quit -t -3":                             "want -t SECONDS",
		"ps 3":                                   "want -p PID",
		"ps -p":                                  "want 1, got 0",
		"ps -p -1":                               `"-1" is no PID`,
		"ps -p x":                                `"x" is no PID`,
		"terminate_client 1":                     "want 2, got 1",
		"start_server":                           "want 2, got 0",
		"start_server -uid -1":                   "want -uid UID",
		"start_server uid 1":                     "want -uid UID",
		"get_server_list 1":                      "want 0, got 1",
		"get_server_status":                      "want 1, got 0",
		"set_default_active_thread_percentage 0": "above 0",
		"set_default_active_thread_percentage 101":   "at most 100",
		"set_default_active_thread_percentage NaN":   "invalid percentage",
		"set_active_thread_percentage 1":             "want 2, got 1",
		"set_default_device_pinned_mem_limit 0 1":    "invalid amount",
		"set_default_device_pinned_mem_limit 0 1K":   "invalid amount",
		"set_default_device_pinned_mem_limit 0 0G":   "invalid amount",
		"set_default_device_pinned_mem_limit 0 1.5G": "invalid amount",
		"set_device_pinned_mem_limit 1 0":            "want 3, got 2",
		"get_default_device_pinned_mem_limit":        "want 1, got 0",
		"get_device_pinned_mem_limit 1":              "want 2, got 1",
		"device_query --csv 5":                       "want 1, got 2",
	} {
		_, err := parseCommand(line)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]string{"1G": "1G", "1024M": "1G", "1025M": "1025M", "17179869183G": "17179869183G"} {
		bytes, err := ParseSize(in)
		if got := formatSize(bytes); got != want || err != nil {
			t.Errorf("%s = %s, %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "G", "1", "-1G", "1g", "17179869184G", "99999999999999999999G"} {
		if _, err := ParseSize(in); err == nil {
			t.Errorf("%q was taken", in)
		}
	}
}

func TestSettings(t *testing.T) {
	s, err := settingsOf("30", "0=1G, GPU-a=512M,0=2G")
	want := settings{Threads: 30, Limits: []deviceLimit{{"0", 1 << 30}, {"GPU-a", 512 << 20}, {"0", 2 << 30}}}
	if diff := cmp.Diff(want, s); diff != "" || err != nil {
		t.Errorf("settings, %v (-want +got):\n%s", err, diff)
	}
	s.set(deviceLimit{"0", 3 << 30})
	s.set(deviceLimit{"9", 4 << 30})
	want.Limits = []deviceLimit{{"GPU-a", 512 << 20}, {"0", 3 << 30}, {"9", 4 << 30}}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("settings after more (-want +got):\n%s", diff)
	}
	if s.get("0") != 3<<30 || s.get("GPU-b") != 0 {
		t.Errorf("limits %d and %d", s.get("0"), s.get("GPU-b"))
	}
	for threads, limits := range map[string]string{"0": "", "x": "", "5": "0", "6": "=1G", "7": "0=1X"} {
		if _, err := settingsOf(threads, limits); err == nil {
			t.Errorf("%q and %q were taken", threads, limits)
		}
	}
}

// Whatever an administrator types is understood or refused, and what is understood has sound numbers.
func FuzzParseCommand(f *testing.F) {
	for _, line := range []string{"quit -t 5", "ps -p 12", "set_device_pinned_mem_limit 1 GPU-0 5G", "set_default_active_thread_percentage 1e2",
		"start_server -uid 0", "terminate_client 1 2", "device_query --csv", "shutdown_server -f -f", "\x00", "set_active_thread_percentage 1 0x1p-2"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		c, err := parseCommand(line)
		if err != nil {
			return
		}
		if _, ok := commands[c.name]; !ok || c.server < 0 || c.client < 0 || c.uid < 0 || c.percentage < 0 || c.percentage > 100 || c.timeout < -1 {
			t.Errorf("%q: %+v", line, c)
		}
	})
}

// Whatever limits an environment names, they are understood or refused.
func FuzzParseLimits(f *testing.F) {
	for _, s := range []string{"0=1G", "GPU-x=1M,1=2G", "=", ",", "0=1G=2G"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		limits, err := parseLimits(s)
		if err != nil {
			return
		}
		for _, l := range limits {
			if l.Device == "" || l.Bytes == 0 {
				t.Errorf("%q: %+v", s, l)
			}
		}
	})
}
