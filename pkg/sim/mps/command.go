// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// command is a line that an administrator gives the daemon.
type command struct {
	name string
	// args of the command, if it has any.
	server, client int // PIDs; server is 0 where none was named
	uid            int
	device         string
	bytes          uint64
	percentage     float64
	force, csv     bool
	timeout        time.Duration // negative: none
}

// asks reports whether a command changes nothing.
func (c *command) asks() bool {
	return strings.HasPrefix(c.name, "get_") || c.name == "ps" || c.name == "device_query"
}

var errArguments = errors.New("invalid arguments")

// commands are the argument parsers of commands, by name.
var commands = map[string]func(c *command, args []string) error{
	"start_server":                         (*command).readUID,
	"shutdown_server":                      (*command).readShutdown,
	"get_server_list":                      (*command).readNothing,
	"get_server_status":                    (*command).readServer,
	"get_client_list":                      (*command).readServer,
	"ps":                                   (*command).readPS,
	"get_default_active_thread_percentage": (*command).readNothing,
	"set_default_active_thread_percentage": (*command).readPercentage,
	"get_active_thread_percentage":         (*command).readServer,
	"set_active_thread_percentage":         (*command).readServerPercentage,
	"get_default_device_pinned_mem_limit":  (*command).readDevice,
	"set_default_device_pinned_mem_limit":  (*command).readLimit,
	"get_default_client_priority":          (*command).readNothing,
	"get_device_pinned_mem_limit":          (*command).readServerDevice,
	"set_device_pinned_mem_limit":          (*command).readServerLimit,
	"terminate_client":                     (*command).readClient,
	"device_query":                         (*command).readDeviceQuery,
	"quit":                                 (*command).readQuit,
	// Not NVIDIA's: simulates a program with a fatal GPU fault.
	commandFault: (*command).readAnyServer,
}

// commandFault makes a server's GPU run into a fault.
const commandFault = "simulate_fault"

// parseCommand reads a line; its errors are the replies to the administrator.
func parseCommand(line string) (command, error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return command{}, fmt.Errorf("%w: empty command", errArguments)
	}
	read, ok := commands[words[0]]
	if !ok {
		return command{}, fmt.Errorf("unknown command: %q", words[0])
	}
	c := command{name: words[0], timeout: -1}
	if err := read(&c, words[1:]); err != nil {
		return command{}, fmt.Errorf("%s: %w", c.name, err)
	}
	return c, nil
}

// want rejects a wrong number of arguments.
func want(args []string, n int) error {
	if len(args) != n {
		return fmt.Errorf("%w: want %d, got %d", errArguments, n, len(args))
	}
	return nil
}

// parsePID reads a process id into its place.
func parsePID(to *int, s string) error {
	pid, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return fmt.Errorf("%w: %q is no PID", errArguments, s)
	}
	*to = int(pid)
	return nil
}

func (c *command) readNothing(args []string) error { return want(args, 0) }

func (c *command) readUID(args []string) error {
	if err := want(args, 2); err != nil {
		return err
	}
	uid, err := strconv.ParseUint(args[1], 10, 31)
	if args[0] != "-uid" || err != nil {
		return fmt.Errorf("%w: want -uid UID", errArguments)
	}
	c.uid = int(uid)
	return nil
}

// readShutdown reads "PID [-f]"; without a PID it is about all servers.
func (c *command) readShutdown(args []string) error {
	rest := args[:0:0]
	for _, a := range args {
		if a == "-f" {
			c.force = true
			continue
		}
		rest = append(rest, a)
	}
	return c.readAnyServer(rest)
}

// readAnyServer reads "[PID]".
func (c *command) readAnyServer(args []string) error {
	if len(args) == 0 {
		return nil
	}
	return c.readServer(args)
}

func (c *command) readServer(args []string) error {
	if err := want(args, 1); err != nil {
		return err
	}
	return parsePID(&c.server, args[0])
}

// readPS reads "[-p PID]".
func (c *command) readPS(args []string) error {
	if len(args) == 0 {
		return nil
	}
	if args[0] != "-p" {
		return fmt.Errorf("%w: want -p PID", errArguments)
	}
	return c.readServer(args[1:])
}

func (c *command) readPercentage(args []string) error {
	if err := want(args, 1); err != nil {
		return err
	}
	var err error
	c.percentage, err = parsePercentage(args[0])
	return err
}

func (c *command) readServerPercentage(args []string) error {
	if err := want(args, 2); err != nil {
		return err
	}
	return errors.Join(parsePID(&c.server, args[0]), c.readPercentage(args[1:]))
}

func (c *command) readDevice(args []string) error {
	if err := want(args, 1); err != nil {
		return err
	}
	c.device = args[0]
	return nil
}

func (c *command) readLimit(args []string) error {
	if err := want(args, 2); err != nil {
		return err
	}
	c.device = args[0]
	var err error
	c.bytes, err = ParseSize(args[1])
	return err
}

func (c *command) readServerDevice(args []string) error {
	if err := want(args, 2); err != nil {
		return err
	}
	c.device = args[1]
	return parsePID(&c.server, args[0])
}

func (c *command) readServerLimit(args []string) error {
	if err := want(args, 3); err != nil {
		return err
	}
	return errors.Join(parsePID(&c.server, args[0]), c.readLimit(args[1:]))
}

func (c *command) readClient(args []string) error {
	if err := want(args, 2); err != nil {
		return err
	}
	return errors.Join(parsePID(&c.server, args[0]), parsePID(&c.client, args[1]))
}

// readDeviceQuery reads "[PID] [--csv]".
func (c *command) readDeviceQuery(args []string) error {
	if n := len(args); n > 0 && args[n-1] == "--csv" {
		c.csv = true
		args = args[:n-1]
	}
	return c.readAnyServer(args)
}

// readQuit reads "[-t SECONDS]".
func (c *command) readQuit(args []string) error {
	if len(args) == 0 {
		return nil
	}
	if err := want(args, 2); err != nil {
		return err
	}
	seconds, err := strconv.ParseUint(args[1], 10, 31)
	if args[0] != "-t" || err != nil || seconds > math.MaxInt32 {
		return fmt.Errorf("%w: want -t SECONDS", errArguments)
	}
	c.timeout = time.Duration(seconds) * time.Second
	return nil
}
