// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// EnvironmentHelp begins the help on environment variables; an example follows.
const EnvironmentHelp = "Every flag can also be set by the environment variable of its name: "

// gcPercent trades CPU for memory: an idle daemon produces little garbage.
const gcPercent = 50

// Service is the common part of subcommands that run as daemons.
type Service struct {
	logging *logsapi.LoggingConfiguration
	gates   featuregate.MutableVersionedFeatureGate
}

// NewService makes one with the defaults of Kubernetes.
func NewService() *Service {
	return &Service{logsapi.NewLoggingConfiguration(), featuregate.NewFeatureGate()}
}

// AddFlags adds the logging flags. Help and docs have those that admins of nodes need; the others are there all the same.
func (s *Service) AddFlags(flags *pflag.FlagSet) { s.addFlags(flags, "v", "logging-format") }

// AddHiddenFlags adds them to a command for people, whose other commands have none.
func (s *Service) AddHiddenFlags(flags *pflag.FlagSet) { s.addFlags(flags) }

func (s *Service) addFlags(flags *pflag.FlagSet, shown ...string) {
	logging := pflag.NewFlagSet("", pflag.ContinueOnError)
	logsapi.AddFlags(s.logging, logging)
	logging.VisitAll(func(f *pflag.Flag) { f.Hidden = !slices.Contains(shown, f.Name) })
	flags.AddFlagSet(logging)
}

// Begin reads the environment, validates the flags and configures logging and memory.
func (s *Service) Begin(flags *pflag.FlagSet, validate func() error) error {
	if err := FlagsFromEnvironment(flags, os.Getenv); err != nil {
		return err
	}
	if err := validate(); err != nil {
		return UsageError(err)
	}
	if err := errors.Join(logsapi.AddFeatureGates(s.gates), logsapi.ValidateAndApply(s.logging, s.gates)); err != nil {
		return UsageError(fmt.Errorf("set up logging: %w", err))
	}
	debug.SetGCPercent(gcPercent)
	return nil
}
