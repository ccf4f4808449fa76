// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParsePCIAddress(t *testing.T) {
	tests := map[string]PCIAddress{
		"0000:18:00.0":     {Bus: 0x18},
		"00000000:18:00.0": {Bus: 0x18},
		"0009:01:00.0":     {Domain: 9, Bus: 1},
		"00010000:C1:1F.7": {Domain: 0x10000, Bus: 0xc1, Device: 0x1f, Function: 7},
		"FFFFFFFF:ff:1f.0": {Domain: 0xffffffff, Bus: 0xff, Device: 0x1f},
	}
	for in, want := range tests {
		t.Run(in, func(t *testing.T) {
			got, err := ParsePCIAddress(in)
			if err != nil {
				t.Fatalf("ParsePCIAddress(%q): %v", in, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("ParsePCIAddress(%q) (-want +got):\n%s", in, diff)
			}
		})
	}
}

func TestParsePCIAddress_Errors(t *testing.T) {
	for _, in := range []string{
		"", "18:00.0", "000:18:00.0", "000000000:18:00.0", "0000:18:00.8", "0000:18:20.0", "0000:1:00.0", "0000:18:0.0",
		"0000:18:00.0\n", " 0000:18:00.0", "0000:18:00", "0000-18-00-0", "000g:18:00.0", "０000:18:00.0",
	} {
		t.Run(in, func(t *testing.T) {
			got, err := ParsePCIAddress(in)
			if err == nil {
				t.Fatalf("ParsePCIAddress(%q) = %v, want an error", in, got)
			}
			if want := "parse PCI address"; !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not say %q", err, want)
			}
			if diff := cmp.Diff(PCIAddress{}, got); diff != "" {
				t.Errorf("address alongside an error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPCIAddress_DeviceName(t *testing.T) {
	tests := map[PCIAddress]string{
		{Bus: 0x18}:         "gpu-0000-18-00-0",
		{Domain: 9, Bus: 1}: "gpu-0009-01-00-0",
		{Domain: 0xffffffff, Bus: 255, Device: 31, Function: 7}: "gpu-ffffffff-ff-1f-7",
	}
	for a, want := range tests {
		if got := a.DeviceName(); got != want {
			t.Errorf("DeviceName of %s: got %q, want %q", a, got, want)
		}
	}
}

// isDNSLabel is RFC 1123: what the resource API demands of device and counter set names.
func isDNSLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func FuzzParsePCIAddress(f *testing.F) {
	for _, s := range []string{"0000:18:00.0", "00000000:18:00.0", "FFFFFFFF:ff:1f.7", "", "0000:18:20.0", "::.", "0000:18:00.0.0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParsePCIAddress(s)
		if err != nil {
			return
		}
		again, err := ParsePCIAddress(a.String())
		if err != nil {
			t.Fatalf("%q parses but its form %q does not: %v", s, a, err)
		}
		if diff := cmp.Diff(a, again); diff != "" {
			t.Errorf("%q is another address after String (-want +got):\n%s", s, diff)
		}
		if name := a.DeviceName(); !isDNSLabel(name) {
			t.Errorf("device name %q of %q is no DNS label", name, s)
		}
		if got := a.Compare(again); got != 0 {
			t.Errorf("Compare with itself: got %d, want 0", got)
		}
	})
}

// Names of devices come from allocations and from requests to the MPS supervisor.
func FuzzParseDeviceName(f *testing.F) {
	for _, s := range []string{"gpu-0000-1b-00-0", "gpu-0000-1b-00-0-mig-19-6", "gpu-0000-1b-00-0-mig-9-4-mps", "gpu-../../x", "gpu-0000-1b-00-0-mig-+9-04", "gpu-0000-1b-00-0-mig-9-99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		pci, err := ParseDeviceName(s)
		if err == nil && !isDNSLabel(pci.DeviceName()) {
			t.Errorf("%q is the GPU %q", s, pci.DeviceName())
		}
		if id, start, ok := ParsePartitionName(s); ok && (err != nil || id < 0 || start < 0) {
			t.Errorf("%q is partition %d at %d: %v", s, id, start, err)
		}
	})
}

func TestPCIAddress_DeviceNameUnique(t *testing.T) {
	seen := map[string]PCIAddress{}
	for _, domain := range []uint32{0, 1, 0x10, 0x1000, 0x10000, 0x100000} {
		for bus := range 256 {
			for fn := range uint8(8) {
				a := PCIAddress{Domain: domain, Bus: uint8(bus), Device: uint8(bus % 32), Function: fn}
				if other, ok := seen[a.DeviceName()]; ok {
					t.Fatalf("%s and %s have the name %q", a, other, a.DeviceName())
				}
				seen[a.DeviceName()] = a
			}
		}
	}
}

func TestPCIAddress_Compare(t *testing.T) {
	ascending := []PCIAddress{
		{}, {Function: 1}, {Device: 1}, {Device: 1, Function: 7}, {Bus: 1}, {Bus: 255, Device: 31, Function: 7},
		{Domain: 1}, {Domain: 0x10000},
	}
	for i, a := range ascending {
		for j, b := range ascending {
			want := 0
			switch {
			case i < j:
				want = -1
			case i > j:
				want = 1
			}
			if got := a.Compare(b); got != want {
				t.Errorf("%s.Compare(%s): got %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestParseDeviceName(t *testing.T) {
	a := PCIAddress{Domain: 0x10001, Bus: 0x1b, Device: 0x1f, Function: 3}
	for _, name := range []string{a.DeviceName(), a.DeviceName() + "-mig-19-6", a.DeviceName() + "-timeslice"} {
		if got, err := ParseDeviceName(name); err != nil || got != a {
			t.Errorf("ParseDeviceName(%q) = %v, %v, want %v", name, got, err, a)
		}
	}
	for _, name := range []string{"", "gpu", "gpu-0000-18-00", "gpu-0000-18-zz-0", "nic-0000-18-00-0", "gpu--18-00-0"} {
		if got, err := ParseDeviceName(name); err == nil {
			t.Errorf("ParseDeviceName(%q) = %v, want an error", name, got)
		}
	}
}
