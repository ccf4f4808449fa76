// SPDX-License-Identifier: Apache-2.0

// fakemps stands in for nvidia-cuda-mps-control and nvidia-cuda-mps-server. What it is to do wrong stands in the file
// /mode of its root.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	mode, _ := os.ReadFile("/mode")
	switch {
	case filepath.Base(os.Args[0]) == "nvidia-cuda-mps-server":
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
		hang()
	case len(os.Args) > 1:
		os.Exit(daemon(strings.TrimSpace(string(mode))))
	default:
		os.Exit(client())
	}
}

// hang waits to be killed. A select without cases would be found out.
func hang() {
	for {
		time.Sleep(time.Hour)
	}
}

func socket() string { return filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control") }

// client sends its input and prints the answer.
func client() int {
	c, err := net.Dial("unix", socket())
	if err != nil {
		fmt.Fprintln(os.Stderr, "Cannot find MPS control daemon process")
		return 1
	}
	_, _ = io.Copy(c, os.Stdin)
	_ = c.(*net.UnixConn).CloseWrite()
	_, _ = io.Copy(os.Stdout, c)
	return 0
}

// daemon serves until it is told to quit.
func daemon(mode string) int {
	log, err := os.OpenFile(filepath.Join(os.Getenv("CUDA_MPS_LOG_DIRECTORY"), "control.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintf(log, "[control] arguments %q mode %q devices %s\n", os.Args[1:], mode, os.Getenv("CUDA_VISIBLE_DEVICES"))
	switch mode {
	case "exit":
		fmt.Fprintln(log, "no GPU here")
		fmt.Fprintln(os.Stderr, "words on standard error")
		return 3
	case "silent":
		fmt.Fprintln(log, "thinking")
		hang()
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	}
	listener, err := net.Listen("unix", socket())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	server := exec.Command("/usr/bin/nvidia-cuda-mps-server")
	server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := server.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	state := &state{percentage: "100.0"}
	for {
		c, err := listener.Accept()
		if err != nil {
			return 1
		}
		if state.serve(c) && mode != "stubborn" {
			_ = server.Process.Kill()
			_ = server.Wait()
			c.Close()
			return 0
		}
		c.Close()
		if mode == "dies" {
			time.Sleep(50 * time.Millisecond)
			return 4
		}
	}
}

type state struct {
	percentage, memory string
}

// serve tells whether to quit.
func (s *state) serve(c net.Conn) bool {
	in, _ := io.ReadAll(c)
	lines := bufio.NewScanner(bytes.NewReader(in))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) == 0:
		case words[0] == "quit":
			return true
		case words[0] == "get_default_active_thread_percentage":
			fmt.Fprintln(c, s.percentage)
		case words[0] == "set_default_active_thread_percentage" && len(words) == 2:
			s.percentage = words[1] + ".0"
		case words[0] == "get_default_device_pinned_mem_limit":
			fmt.Fprintln(c, s.memory)
		case words[0] == "set_default_device_pinned_mem_limit" && len(words) == 3:
			s.memory = words[2]
		default:
			fmt.Fprintln(c, "Unknown command")
		}
	}
	return false
}
