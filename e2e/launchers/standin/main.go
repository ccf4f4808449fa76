// SPDX-License-Identifier: Apache-2.0

// standin is in place of the launcher of llm-d's fast model actuation in its image: it manages instances of vLLM that do nothing
// (docs/launcher.md of llm-d-fast-model-actuation 0.6.2). What it is told to start on a GPU that nvidia-smi does not show here, it refuses,
// as the launcher does. By the name of python3 it also is the sidecar that reports changes of instances, and does nothing.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// instance is one of vLLM, as the launcher describes it.
type instance struct {
	ID          string            `json:"instance_id"`
	Status      string            `json:"status"`
	Options     string            `json:"options"`
	UUIDs       []string          `json:"gpu_uuids,omitempty"`
	Variables   map[string]string `json:"env_vars,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Slept counts how often it was put to sleep.
	Slept int `json:"slept"`

	sleeps bool
	server *http.Server
}

// launcher has instances.
type launcher struct {
	mu        sync.Mutex
	instances map[string]*instance
}

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	if !slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasSuffix(arg, "launcher_pod_notifier.py") }) {
		go launch()
	}
	<-stop
}

// launch serves what the launcher does.
func launch() {
	l := &launcher{instances: map[string]*instance{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v2/vllm/instances", l.list)
	mux.HandleFunc("GET /v2/vllm/instances/{id}", l.get)
	mux.HandleFunc("PUT /v2/vllm/instances/{id}", l.start)
	mux.HandleFunc("DELETE /v2/vllm/instances/{id}", l.end)
	log.Fatal(newServer(":8001", mux).ListenAndServe())
}

func newServer(address string, handler http.Handler) *http.Server {
	return &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: time.Minute}
}

// visible are the UUIDs of the GPUs here.
func visible() ([]string, error) {
	out, err := exec.Command("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").CombinedOutput() //nolint:noctx // it ends by itself
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w: %s", err, out)
	}
	return strings.Fields(string(out)), nil
}

func (l *launcher) list(w http.ResponseWriter, _ *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := []*instance{}
	for _, i := range l.instances {
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b *instance) int { return strings.Compare(a.ID, b.ID) })
	answer(w, map[string]any{"total_instances": len(all), "running_instances": len(all), "instances": all})
}

func (l *launcher) get(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.instances[r.PathValue("id")]
	if i == nil {
		http.Error(w, "no such instance", http.StatusNotFound)
		return
	}
	answer(w, i)
}

func (l *launcher) start(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := &instance{ID: r.PathValue("id"), Status: "running"}
	if err := json.NewDecoder(r.Body).Decode(i); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	uuids, err := visible()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for _, uuid := range i.UUIDs {
		if !slices.Contains(uuids, uuid) {
			log.Printf("refused %s: GPU %s is none of %v", i.ID, uuid, uuids)
			http.Error(w, "no GPU "+uuid, http.StatusBadRequest)
			return
		}
	}
	if l.instances[i.ID] != nil {
		http.Error(w, "it is there", http.StatusConflict)
		return
	}
	i.serve(&l.mu)
	l.instances[i.ID] = i
	log.Printf("started %s on %v", i.ID, i.UUIDs)
	w.WriteHeader(http.StatusCreated)
	answer(w, i)
}

func (l *launcher) end(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.instances[r.PathValue("id")]
	if i == nil {
		http.Error(w, "no such instance", http.StatusNotFound)
		return
	}
	if err := i.server.Close(); err != nil {
		log.Printf("end %s: %v", i.ID, err)
	}
	delete(l.instances, i.ID)
	answer(w, map[string]string{"status": "terminated", "instance_id": i.ID})
}

// serve is what vLLM answers at its own port in sleep mode.
func (i *instance) serve(mu *sync.Mutex) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		answer(w, map[string]bool{"is_sleeping": i.sleeps})
	})
	sleep := func(on bool) http.HandlerFunc {
		return func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if on && !i.sleeps {
				i.Slept++
			}
			i.sleeps = on
		}
	}
	mux.HandleFunc("POST /sleep", sleep(true))
	mux.HandleFunc("POST /wake_up", sleep(false))
	i.server = newServer(":"+i.Annotations["inference-port"], mux)
	go func() {
		if err := i.server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			log.Printf("serve %s: %v", i.ID, err)
		}
	}()
}

func answer(w http.ResponseWriter, what any) {
	if err := json.NewEncoder(w).Encode(what); err != nil {
		log.Print(err)
	}
}
