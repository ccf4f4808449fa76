// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// apiServer serves lists and watches of what it is given, in pages, as an API server does. Objects are kept as functions: a
// thousand nodes have 300 MB of slices.
type apiServer struct {
	mu      sync.Mutex
	version int
	objects map[string]map[string]object // by resource and key
	log     []event
	grown   chan struct{} // closed by the next event
}

type object func(version int) []byte

type event struct {
	version             int
	resource, kind, key string
	object              object
}

// kinds of resources.
var kinds = map[string]string{
	"/apis/resource.k8s.io/v1/resourceslices": "ResourceSlice", "/apis/resource.k8s.io/v1/resourceclaims": "ResourceClaim",
	"/apis/resource.k8s.io/v1/deviceclasses": "DeviceClass", "/apis/resource.k8s.io/v1/devicetaintrules": "DeviceTaintRule",
	"/api/v1/nodes": "Node", "/api/v1/pods": "Pod", "/api/v1/resourcequotas": "ResourceQuota",
	"/apis/resource.k8s.io/v1/resourceclaimtemplates": "ResourceClaimTemplate",
}

func groupOf(path string) string {
	if strings.Contains(path, "resource.k8s.io") {
		return "resource.k8s.io/v1"
	}
	return "v1"
}

func newAPIServer() *apiServer {
	s := &apiServer{version: 1, objects: map[string]map[string]object{}, grown: make(chan struct{})}
	for path := range kinds {
		s.objects[path] = map[string]object{}
	}
	return s
}

// put creates or changes an object.
func (s *apiServer) put(path, key string, o object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := "ADDED"
	if s.objects[path][key] != nil {
		kind = "MODIFIED"
	}
	s.objects[path][key] = o
	s.add(path, kind, key, o)
}

// remove deletes an object.
func (s *apiServer) remove(path, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[path][key]
	delete(s.objects[path], key)
	s.add(path, "DELETED", key, o)
}

func (s *apiServer) add(path, kind, key string, o object) {
	s.version++
	s.log = append(s.log, event{s.version, path, kind, key, o})
	close(s.grown)
	s.grown = make(chan struct{})
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch q := r.URL.Query(); {
	case r.URL.Path == "/version":
		fmt.Fprint(w, "{}")
	case kinds[r.URL.Path] == "":
		status(w, http.StatusNotFound, "NotFound")
	case r.Method != http.MethodGet:
		status(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	case q.Get("sendInitialEvents") != "":
		status(w, http.StatusUnprocessableEntity, "Invalid")
	case q.Get("watch") != "":
		s.watch(w, r)
	default:
		s.list(w, r)
	}
}

func status(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	objects := s.objects[r.URL.Path]
	keys := make([]string, 0, len(objects))
	for key := range objects {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	from, _ := strconv.Atoi(r.URL.Query().Get("continue")) // empty for the first
	to := len(keys)
	next := ""
	if limit, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil && limit > 0 && from+limit < to {
		to = from + limit
		next = strconv.Itoa(to)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":"%d","continue":%q},"items":[`, kinds[r.URL.Path], groupOf(r.URL.Path), s.version, next)
	for i, key := range keys[from:to] {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(objects[key](1))
	}
	b.WriteString("]}")
	_, _ = w.Write(b.Bytes()) // the client may have gone
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	seen, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	flusher, _ := w.(http.Flusher)
	for {
		flusher.Flush()
		s.mu.Lock()
		grown := s.grown
		var b bytes.Buffer
		for _, e := range s.log {
			if e.version > seen && e.resource == r.URL.Path {
				fmt.Fprintf(&b, `{"type":%q,"object":{"kind":%q,"apiVersion":%q,%s}`+"\n", e.kind, kinds[r.URL.Path], groupOf(r.URL.Path), e.object(e.version)[1:])
			}
		}
		seen = s.version
		s.mu.Unlock()
		if _, err := w.Write(b.Bytes()); err != nil {
			return
		}
		flusher.Flush()
		select {
		case <-r.Context().Done():
			return
		case <-grown:
		}
	}
}

// constant is an object that is a value; setVersion sets its resource version.
func constant[T any](value T, setVersion func(*T, string)) object {
	return func(version int) []byte {
		v := value
		setVersion(&v, strconv.Itoa(version))
		data, err := json.Marshal(v)
		if err != nil {
			panic(err) // API objects have JSON
		}
		return data
	}
}
