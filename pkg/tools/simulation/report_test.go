// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/cleave-dra/cleave/pkg/golden"
)

// reportOf is one with two strategies and few numbers.
func reportOf() *Report {
	r := &Report{Nodes: 4, Model: "hgx-h100", GPUs: 32, Seed: 7, Duration: 36 * time.Hour, Load: 0.75}
	for i, name := range []string{Default, "pack"} {
		result := Result{
			Strategy: name, Requests: 200, Rejected: 20 - 15*i, Slices: 400, RejectedSlices: float64(40 - 30*i), WholeFree: float64(3 + 9*i),
			LeastWholeFree: 1 + i, Fragmentation: 0.5 - 0.4*float64(i), Allocated: 0.7,
			Kinds: []KindResult{{Name: "small", Requests: 150, Rejected: 5}, {Name: "<large> & wide"}},
		}
		for n := range samples {
			result.Samples = append(result.Samples, Sample{
				At: time.Duration(n+1) * r.Duration / samples, WholeFree: 16*i + n/20, Fragmentation: float64(n%50) / 100, Allocated: 0.7,
				RejectedSlices: float64(n) / 1000,
			})
		}
		r.Results = append(r.Results, result)
	}
	return r
}

func TestReport_Golden(t *testing.T) {
	for file, write := range map[string]func(*Report, io.Writer) error{
		"report.txt":       func(r *Report, w io.Writer) error { return r.Print(w, false) },
		"report-ascii.txt": func(r *Report, w io.Writer) error { return r.Print(w, true) },
		"report.svg":       func(r *Report, w io.Writer) error { return r.SVG(w, "small & <large>") },
	} {
		var got bytes.Buffer
		if err := write(reportOf(), &got); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, filepath.Join("testdata", file), got.String())
	}
}

// TestReport_GivenUp: requests that were given up have a line of their own.
func TestReport_GivenUp(t *testing.T) {
	r := reportOf()
	r.Results[1].GivenUp = 3
	var got bytes.Buffer
	if err := r.Print(&got, true); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^given up after 10s, neither placed nor rejected +0\.0 % \(0 of 200\) +1\.5 % \(3 of 200\)$`)
	if !want.Match(got.Bytes()) {
		t.Errorf("want a line that matches %s in\n%s", want, got.String())
	}
	var picture bytes.Buffer
	if err := r.SVG(&picture, "x"); err != nil || !bytes.Contains(picture.Bytes(), []byte("; pack gave up 3 of 200 requests<")) {
		t.Errorf("the picture does not say so: %v", err)
	}
}

func TestSVG_WellFormed(t *testing.T) {
	var picture bytes.Buffer
	if err := reportOf().SVG(&picture, "<&>"); err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(&picture)
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestHours(t *testing.T) {
	for d, want := range map[time.Duration]string{
		36 * time.Hour: "36h", 90 * time.Minute: "1h30m", 30 * time.Minute: "30m", 45 * time.Second: "45s", 0: "0s",
	} {
		if got := hours(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}
