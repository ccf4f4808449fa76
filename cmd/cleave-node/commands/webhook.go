// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/tools/admission"
)

func newWebhook() *cobra.Command {
	server := admission.Server{Rules: admission.DefaultRules()}
	service := cli.NewService()
	cmd := &cobra.Command{
		Use:   "webhook",
		Short: "Check claims, templates and DeviceClasses when they are created",
		Long: "webhook answers the API server's admission reviews (POST /validate) about ResourceClaims, ResourceClaimTemplates and\n" +
			"DeviceClasses. It checks parameters when an object is created, as the plugin does when it prepares a claim. It needs\n" +
			"no rights in the cluster. Without it, the plugin reports the same errors later.\n\n" +
			cli.EnvironmentHelp + "--tls-cert-file by TLS_CERT_FILE.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			validate := func() error {
				var errs []error
				for _, f := range []struct{ flag, value string }{
					{"--address", server.Address}, {"--tls-cert-file", server.CertFile}, {"--tls-private-key-file", server.KeyFile},
				} {
					if f.value == "" {
						errs = append(errs, fmt.Errorf("%s is not set", f.flag))
					}
				}
				return errors.Join(append(errs, nodeslices.CheckDriverName(server.Rules.Driver))...)
			}
			if err := service.Begin(cmd.Flags(), validate); err != nil {
				return err
			}
			return server.Run(cmd.Context(), nil)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&server.Address, "address", ":8443", "address to serve TLS at")
	flags.StringVar(&server.CertFile, "tls-cert-file", "", "certificate in PEM format; reread when it changes")
	flags.StringVar(&server.KeyFile, "tls-private-key-file", "", "its private key")
	flags.StringVar(&server.Rules.Driver, "driver-name", server.Rules.Driver, "name of the DRA driver whose parameters are checked")
	flags.StringSliceVar(&server.Rules.SingleShare, "single-share-classes", server.Rules.SingleShare,
		"DeviceClasses that allow only one device per request")
	service.AddFlags(flags)
	return cmd
}
