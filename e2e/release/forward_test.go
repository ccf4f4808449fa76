// SPDX-License-Identifier: Apache-2.0

package release

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo answers each connection with what it says.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends with the listener
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

func TestForwarder(t *testing.T) {
	f, err := Forward(t.Context(), "127.0.0.1", echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp4", "127.0.0.1:"+f.Port)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	say := func(what string) {
		t.Helper()
		if _, err := io.WriteString(c, what); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(what string, within time.Duration) error {
		t.Helper()
		if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(what))
		if _, err := io.ReadFull(c, got); err != nil {
			return err
		}
		if string(got) != what {
			t.Errorf("heard %q, want %q", got, what)
		}
		return nil
	}
	const long, short = time.Minute, 50 * time.Millisecond
	say("at once")
	if err := hear("at once", long); err != nil {
		t.Fatal(err)
	}

	f.Cut()
	say("kept back")
	if err := hear("kept back", short); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("while the network is cut: %v, want nothing to come", err)
	}
	f.Cut() // no more than cut
	f.Mend()
	if err := hear("kept back", long); err != nil {
		t.Fatal(err)
	}

	f.Delay(2 * short)
	start := time.Now()
	say("late")
	if err := hear("late", long); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 4*short {
		t.Errorf("delayed by %s each way, an answer took %s", 2*short, took)
	}
}
