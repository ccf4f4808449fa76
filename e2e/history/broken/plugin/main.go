// SPDX-License-Identifier: Apache-2.0

// Plugin is what of Cleave's plugin serves claims, on a simulated node, without a Kubernetes: the test next to it asks it over
// its standard input, has it killed at a step, and starts it anew.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/e2e/history/broken/protocol"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

func main() {
	klog.SetLogger(klog.Logger{}) // what it says is not under test
	if err := serve(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve answers requests until there are no more.
func serve(ctx context.Context, dir string) error {
	n := &node{dir: dir}
	var err error
	if n.active, err = n.open(ctx); err != nil {
		return err
	}
	n.active.Recover(ctx)
	answers := json.NewEncoder(os.Stdout)
	if err := answers.Encode(protocol.Answer{}); err != nil {
		return err
	}
	requests := bufio.NewScanner(os.Stdin)
	for requests.Scan() {
		var r protocol.Request
		if err := json.Unmarshal(requests.Bytes(), &r); err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		n.steps.begin(r, func() error {
			n.next, err = n.open(ctx)
			return err
		})
		answer := n.do(ctx, r)
		n.steps.end()
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
	return requests.Err()
}

func (n *node) do(ctx context.Context, r protocol.Request) protocol.Answer {
	var answer protocol.Answer
	var err error
	switch r.Verb {
	case protocol.Prepare:
		var devices []records.Device
		devices, err = n.active.Prepare(ctx, claimOf(r))
		for _, d := range devices {
			answer.Devices = append(answer.Devices, protocol.Device{Name: d.Device, CDI: d.CDIDeviceIDs})
		}
	case protocol.Unprepare:
		err = n.active.Unprepare(ctx, records.Claim{Namespace: "default", Name: r.Claim, UID: types.UID(r.Claim)})
		n.active.Recover(ctx)
	case protocol.Take:
		if n.next == nil { // the step did not come
			n.next, err = n.open(ctx)
		}
		if err == nil {
			n.active, n.next = n.next, nil
			n.active.Recover(ctx)
		}
	default:
		err = fmt.Errorf("unknown verb %q", r.Verb)
	}
	if err != nil {
		answer.Error = err.Error()
	}
	return answer
}

// claimOf is a claim as the API server has it.
func claimOf(r protocol.Request) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: r.Claim, UID: types.UID(r.Claim)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for i, d := range r.Devices {
		request := fmt.Sprintf("r%d", i)
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: request, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: driver},
		})
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: request, Driver: driver, Pool: pool, Device: d,
		})
	}
	return c
}
