// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/history"
)

// conversation is a connection of the kubelet to the plugin, of which the calls are recorded.
type conversation struct {
	name   string
	record func(history.Fact)

	mu    sync.Mutex // both directions
	calls map[uint32]*call
}

// call is a call that has no answer yet.
type call struct {
	id                string
	method            history.Method
	request, response []byte
	asked             bool
	claims            []string
}

// methods by the end of their path: v1 and v1beta1 have the same messages.
var methods = map[string]history.Method{
	"/NodePrepareResources": history.Prepare, "/NodeUnprepareResources": history.Unprepare,
}

// watch returns how to read along what the kubelet and what the plugin says.
func (c *conversation) watch() (asked, answered *direction) {
	c.calls = map[uint32]*call{}
	asked, answered = newDirection(true), newDirection(false)
	asked.onHeaders = func(stream uint32, fields []hpack.HeaderField, _ bool) { c.begin(stream, fields) }
	asked.onData = func(stream uint32, data []byte, _ bool) { c.ask(stream, data) }
	asked.onReset = c.forget // the kubelet waits no longer: what becomes of the call is not known
	answered.onHeaders = c.end
	answered.onData = func(stream uint32, data []byte, _ bool) { c.answer(stream, data) }
	answered.onReset = c.forget
	return asked, answered
}

func (c *conversation) forget(stream uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, stream)
}

func field(fields []hpack.HeaderField, name string) string {
	i := slices.IndexFunc(fields, func(f hpack.HeaderField) bool { return f.Name == name })
	if i < 0 {
		return ""
	}
	return fields[i].Value
}

func (c *conversation) begin(stream uint32, fields []hpack.HeaderField) {
	path := field(fields, ":path")
	method, ok := methods[path[max(0, strings.LastIndex(path, "/")):]]
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[stream] = &call{id: fmt.Sprintf("%s/%d", c.name, stream), method: method}
}

// ask collects the request; what is asked is recorded once it is complete, before the plugin has the end of it.
func (c *conversation) ask(stream uint32, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.calls[stream]
	if k == nil || k.asked || len(k.request)+len(data) > maxMessage {
		return
	}
	k.request = append(k.request, data...)
	m := message(k.request)
	if m == nil {
		return
	}
	k.asked = true
	var request drapb.NodePrepareResourcesRequest // of the same form as that for unpreparing
	if proto.Unmarshal(m, &request) != nil {
		return
	}
	for _, claim := range request.GetClaims() {
		k.claims = append(k.claims, claim.GetUid())
		c.record(history.Call{ID: k.id, Method: k.method, Claim: claim.GetUid()})
	}
	k.request = nil
}

func (c *conversation) answer(stream uint32, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.calls[stream]; k != nil && len(k.response)+len(data) <= maxMessage {
		k.response = append(k.response, data...)
	}
}

// noAnswer are how a call ends of which the plugin does not say what became of it.
var noAnswer = []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable}

// end records the answer with the trailers of a call, before the kubelet has them.
func (c *conversation) end(stream uint32, fields []hpack.HeaderField, ends bool) {
	if !ends {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.calls[stream]
	if k == nil {
		return
	}
	delete(c.calls, stream)
	status, err := strconv.ParseUint(field(fields, "grpc-status"), 10, 32)
	if err != nil || slices.Contains(noAnswer, codes.Code(status)) {
		return
	}
	if status != uint64(codes.OK) {
		for _, uid := range k.claims {
			c.record(history.Return{ID: k.id, Method: k.method, Claim: uid, Error: field(fields, "grpc-message")})
		}
		return
	}
	for _, r := range k.returns() {
		c.record(r)
	}
}

// returns are the plugin's answers for each claim.
func (k *call) returns() []history.Return {
	m := message(k.response)
	var all []history.Return
	if k.method == history.Unprepare {
		var response drapb.NodeUnprepareResourcesResponse
		if proto.Unmarshal(m, &response) != nil {
			return nil
		}
		for _, uid := range k.claims {
			if r, ok := response.GetClaims()[uid]; ok {
				all = append(all, history.Return{ID: k.id, Method: k.method, Claim: uid, Error: r.GetError()})
			}
		}
		return all
	}
	var response drapb.NodePrepareResourcesResponse
	if proto.Unmarshal(m, &response) != nil {
		return nil
	}
	for _, uid := range k.claims {
		r, ok := response.GetClaims()[uid]
		if !ok {
			continue
		}
		answer := history.Return{ID: k.id, Method: k.method, Claim: uid, Error: r.GetError()}
		for _, d := range r.GetDevices() {
			answer.Devices = append(answer.Devices, history.Prepared{Device: d.GetDeviceName(), CDI: d.GetCdiDeviceIds()})
		}
		all = append(all, answer)
	}
	return all
}
