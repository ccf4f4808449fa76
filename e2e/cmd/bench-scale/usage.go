// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
)

// apiServerMB is the memory of the API server that is resident, garbage included.
func apiServerMB(ctx context.Context, c *cluster.Cluster) (float64, error) {
	all, err := c.Status(ctx)
	if err != nil {
		return 0, err
	}
	for _, s := range all {
		if s.Component == cluster.APIServer {
			return process.Memory(s.PID, "VmRSS")
		}
	}
	return 0, errors.New("find the API server: it does not run")
}

// apiServerHeapMB is what the API server's heap holds, in MB, after a garbage collection (net/http/pprof, gc=1): what it keeps
// resident can be twice that and more after many objects were written at once.
func apiServerHeapMB(ctx context.Context, client kubernetes.Interface) (float64, error) {
	profile, err := client.Discovery().RESTClient().Get().AbsPath("/debug/pprof/heap").Param("gc", "1").Param("debug", "1").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the heap profile of the API server: %w", err)
	}
	for line := range strings.Lines(string(profile)) {
		if rest, ok := strings.CutPrefix(line, "# HeapAlloc = "); ok {
			bytes, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				return 0, fmt.Errorf("read the heap profile of the API server: %w", err)
			}
			return bytes / 1e6, nil
		}
	}
	return 0, errors.New("read the heap profile of the API server: it does not say HeapAlloc")
}
