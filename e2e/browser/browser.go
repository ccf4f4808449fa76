// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// Browser is a running Chromium.
type Browser struct {
	cmd  *exec.Cmd
	in   *os.File
	home string
	read sync.WaitGroup

	mu      sync.Mutex
	last    int
	replies map[int]chan message
	pages   map[string]*Page // by session
}

// message is what either side sends.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// Start starts Chromium, and installs it where it is missing.
func Start(ctx context.Context, log io.Writer) (*Browser, error) {
	path, err := cluster.Chromium(ctx, log)
	if err != nil {
		return nil, err
	}
	home, err := os.MkdirTemp("", "cleave-browser-")
	if err != nil {
		return nil, fmt.Errorf("start a browser: %w", err)
	}
	b := &Browser{home: home, replies: map[int]chan message{}, pages: map[string]*Page{}}
	if err := b.start(path); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", path, err), os.RemoveAll(home))
	}
	return b, nil
}

func (b *Browser) start(path string) error {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	out, from, err := os.Pipe()
	if err != nil {
		return errors.Join(err, theirs.Close(), ours.Close())
	}
	b.cmd = exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars",
		"--remote-debugging-pipe", "--user-data-dir="+b.home, "about:blank")
	b.cmd.ExtraFiles = []*os.File{theirs, from} // 3 and 4
	b.cmd.Env = append(os.Environ(), "HOME="+b.home)
	b.in = ours
	err = b.cmd.Start()
	if err = errors.Join(err, theirs.Close(), from.Close()); err != nil {
		return errors.Join(err, ours.Close(), out.Close())
	}
	b.read.Go(func() { b.receive(out) })
	return nil
}

// Close ends the browser.
func (b *Browser) Close() error {
	kill := time.AfterFunc(30*time.Second, func() { _ = b.cmd.Process.Kill() })
	defer kill.Stop()
	err := b.in.Close() // it ends by itself then, or is killed
	b.read.Wait()
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait() // its status says no more
	return errors.Join(err, removeProfile(b.home))
}

// removeProfile removes what a browser wrote. Its children may write a while longer than the browser itself lives.
func removeProfile(home string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return workload.Until(ctx, "the browser's profile to be removed", func(context.Context) (bool, string, error) {
		err := os.RemoveAll(home)
		return err == nil, fmt.Sprint(err), nil
	})
}

// receive passes on what the browser says until it ends.
func (b *Browser) receive(out *os.File) {
	defer func() { _ = out.Close() }()
	r := bufio.NewReader(out)
	for {
		data, err := r.ReadBytes(0)
		if err != nil {
			break
		}
		var m message
		if json.Unmarshal(data[:len(data)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		reply, page := b.replies[m.ID], b.pages[m.Session]
		delete(b.replies, m.ID)
		b.mu.Unlock()
		switch {
		case m.ID != 0 && reply != nil:
			reply <- m
		case m.ID == 0 && page != nil:
			page.happened(m.Method, m.Params)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, reply := range b.replies {
		close(reply)
		delete(b.replies, id)
	}
}

// call sends a command and waits for its result, which may be nil.
func (b *Browser) call(ctx context.Context, session, method string, params, result any) error {
	encoded, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("encode the parameters of %s: %w", method, err)
	}
	reply := make(chan message, 1)
	b.mu.Lock()
	b.last++
	data, err := json.Marshal(message{ID: b.last, Session: session, Method: method, Params: encoded})
	if err == nil {
		b.replies[b.last] = reply
		_, err = b.in.Write(append(data, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("send %s to the browser: %w", method, err)
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s in the browser: %w", method, ctx.Err())
	case m, ok := <-reply:
		switch {
		case !ok:
			return fmt.Errorf("%s: the browser has ended", method)
		case m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case result == nil:
			return nil
		}
		return json.Unmarshal(m.Result, result)
	}
}
