// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// recoverWithin is the time after a reset in which its GPU is not said to be unhealthy still: an unhealthy one is polled every 10 s.
const recoverWithin = time.Minute

// resetOf returns the request to reset a GPU, named by its device, that has not been carried out; empty if there is none.
func (o *Observed) resetOf(device string) string {
	request := o.Cluster.Node.Reset
	if request == o.ResetDone || gpuOf(request) != device {
		return ""
	}
	return request
}

// gpuOf returns the device that a request names.
func gpuOf(request string) string {
	device, _, _ := strings.Cut(request, ".")
	return device
}

// checkRequest reports a request that is not carried out, once: it names no GPU, or was carried out before, and the GPU is unhealthy. It
// has the last request forgotten when the label is gone: with the same value, the label is a new request then. Nobody sees it go that is
// not running, or is busy, while it is gone.
func (p modes) checkRequest(o *Observed) {
	request := o.Cluster.Node.Reset
	p.ForgetReset = o.Ready && request == "" && o.ResetDone != ""
	g := p.Offer.Find(gpuOf(request))
	if request == "" || g != nil && request != o.ResetDone {
		p.Memory.NotReset = ""
		return
	}
	if p.Memory.NotReset == request || g != nil && (len(o.Conditions[g.PCI]) == 0 || o.Now.Before(p.Memory.ResetAt.Add(recoverWithin))) {
		return
	}
	p.Memory.NotReset = request
	if g != nil {
		p.report(Report{
			Log: "A GPU is unhealthy, and the reset that is requested was carried out before", Values: []any{"request", request},
			Warning: true, Reason: reasonNotReset, Message: fmt.Sprintf("%s is unhealthy, and is not reset: the label %s=%s was carried out "+
				"before. For another reset, remove it and set it again, or let its value end in a dot and any text", Describe(g),
				v1alpha1.ResetLabel, request),
		})
		return
	}
	var names []string
	for i := range p.Offer.GPUs {
		names = append(names, p.Offer.GPUs[i].PCI.DeviceName())
	}
	p.report(Report{
		Log: "A reset is requested of a GPU that the node does not have", Values: []any{"request", request},
		Warning: true, Reason: reasonNotReset, Message: fmt.Sprintf("The label %s=%s names no GPU that the driver reads. These are read: %s",
			v1alpha1.ResetLabel, request, strings.Join(names, ", ")),
	})
}

// reportReset reports that a GPU was reset on request.
func (p modes) reportReset(o *Observed, g *gpu.GPU) {
	p.Memory.ResetAt = o.Now
	p.report(Report{
		Log: "A GPU was reset on request", Values: []any{"gpu", g.PCI.DeviceName(), "uuid", g.UUID},
		Reason: reasonReset, Message: fmt.Sprintf("%s was reset, as the label %s requests. The label can be removed", Describe(g),
			v1alpha1.ResetLabel),
	})
}
