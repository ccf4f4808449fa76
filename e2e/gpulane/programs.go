// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// programTimeout bounds a program that answers and ends: nvidia-smi needs seconds where the driver sleeps.
const programTimeout = time.Minute

// transcript keeps what programs said, word by word, for the people who write Cleave.
type transcript struct {
	mu sync.Mutex
	to io.Writer
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.to.Write(p)
}

// run runs a program to its end and writes down all it says. Its standard output is the result.
func (t *transcript) run(ctx context.Context, c *exec.Cmd) ([]byte, error) {
	began := time.Now()
	var out, complaints bytes.Buffer
	c.Stdout, c.Stderr = &out, &complaints
	err := runWithin(ctx, c)
	fmt.Fprintf(t, "$ %s\n%s%s[%s, %s]\n\n", strings.Join(c.Args, " "), out.Bytes(), complaints.Bytes(), ending(err),
		time.Since(began).Round(time.Millisecond))
	if err != nil {
		return out.Bytes(), fmt.Errorf("run %s: %w: %.400s", filepath.Base(c.Path), err, strings.TrimSpace(complaints.String()+" "+out.String()))
	}
	return out.Bytes(), nil
}

// quietly runs a program without writing down what it says.
func (t *transcript) quietly(ctx context.Context, c *exec.Cmd) ([]byte, error) {
	return (&transcript{to: io.Discard}).run(ctx, c)
}

// runWithin runs a command that was made without a context, and kills it when its time is over.
func runWithin(ctx context.Context, c *exec.Cmd) error {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	c.WaitDelay = time.Second
	if err := c.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Process.Kill() }) // Wait reports it
	err := c.Wait()
	stop()
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return err
}

func ending(err error) string {
	if err == nil {
		return "well"
	}
	return err.Error()
}

// file writes a file down as if a program had printed it.
func (t *transcript) file(path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		data = []byte(err.Error() + "\n")
	}
	fmt.Fprintf(t, "$ cat %s\n%s\n", path, data)
}

// driverProgram is a program of the driver, in the driver's root.
func driverProgram(root, path string, args ...string) *exec.Cmd {
	if root == "/" || os.Geteuid() != 0 {
		return exec.Command(path, args...) //nolint:noctx // runWithin bounds it
	}
	inside, err := filepath.Rel(root, path)
	if err != nil {
		inside = path // it does not start, and says so
	}
	c := exec.Command("/"+inside, args...) //nolint:noctx // likewise
	c.Dir = "/"
	c.Env = []string{"PATH=" + strings.Join(programDirs, ":"), "LANG=C.UTF-8"}
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	return c
}

// maxProgram bounds an unpacked program, in bytes.
const maxProgram = 256 << 20

// unpack makes a program of a packed file, or of a plain one.
func unpack(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("unpack a program of the lane: %w", err)
	}
	defer in.Close()
	var data io.Reader = in
	if strings.HasSuffix(from, ".gz") {
		packed, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("unpack %s: %w", from, err)
		}
		data = packed
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", from, err)
	}
	_, err = io.Copy(out, io.LimitReader(data, maxProgram))
	if err := errors.Join(err, out.Chmod(0o755), out.Close()); err != nil { // whatever the umask
		return fmt.Errorf("unpack %s: %w", from, err)
	}
	return nil
}
