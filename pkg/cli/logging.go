// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/pflag"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// environmentHelp begins the help on environment variables; an example follows.
const environmentHelp = "Every flag can also be set by the environment variable of its name: "

// service is the common part of subcommands that run as daemons.
type service struct {
	logging *logsapi.LoggingConfiguration
	gates   featuregate.MutableVersionedFeatureGate
}

func newService() *service {
	return &service{logsapi.NewLoggingConfiguration(), featuregate.NewFeatureGate()}
}

// addFlags adds the logging flags.
func (s *service) addFlags(flags *pflag.FlagSet) { logsapi.AddFlags(s.logging, flags) }

// begin reads the environment, validates the flags and configures logging and memory.
func (s *service) begin(flags *pflag.FlagSet, validate func() error) error {
	if err := flagsFromEnvironment(flags, os.Getenv); err != nil {
		return err
	}
	if err := validate(); err != nil {
		return &usageError{err}
	}
	if err := errors.Join(logsapi.AddFeatureGates(s.gates), logsapi.ValidateAndApply(s.logging, s.gates)); err != nil {
		return &usageError{fmt.Errorf("set up logging: %w", err)}
	}
	debug.SetGCPercent(gcPercent)
	return nil
}
