// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric documents one of the plugin's metrics.
type Metric struct {
	Name, Help string
	Labels     []string
}

// described matches client_golang's text form of a metric's description; there is no other way to read one.
var described = regexp.MustCompile(`fqName: "([^"]*)", help: "([^"]*)", unit: "[^"]*", constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}`)

// Metrics documents the plugin's own metrics, sorted by name, without those of the Go runtime and the process.
func Metrics() []Metric {
	descriptions := make(chan *prometheus.Desc)
	registry := newMetrics().registry
	go func() {
		registry.Describe(descriptions)
		close(descriptions)
	}()
	var all []Metric
	for d := range descriptions {
		m := described.FindStringSubmatch(d.String())
		if m == nil || !strings.HasPrefix(m[1], "cleave_") {
			continue
		}
		metric := Metric{Name: m[1], Help: m[2]}
		if m[3] != "" {
			metric.Labels = strings.Split(m[3], ",")
		}
		all = append(all, metric)
	}
	slices.SortFunc(all, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
