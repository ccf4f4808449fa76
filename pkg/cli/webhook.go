// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/admission"
	"github.com/cleave-dra/cleave/pkg/plugin"
)

func newWebhook() *cobra.Command {
	server := admission.Server{Rules: admission.DefaultRules()}
	service := newService()
	cmd := &cobra.Command{
		Use:   "webhook",
		Short: "Check claims, templates and DeviceClasses when they are created",
		Long: "webhook answers the API server's admission reviews (POST /validate) about ResourceClaims, ResourceClaimTemplates and\n" +
			"DeviceClasses: the checks that the plugin makes of parameters when it prepares a claim, made when the object is\n" +
			"created. It needs no rights in the cluster. Without it the plugin gives the same errors later.\n\n" +
			"Every flag can also be set by the environment variable of its name: --tls-cert-file by TLS_CERT_FILE.",
		Args: noArgs,
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
				return errors.Join(append(errs, plugin.CheckDriverName(server.Rules.Driver))...)
			}
			if err := service.begin(cmd.Flags(), validate); err != nil {
				return err
			}
			return server.Run(cmd.Context(), nil)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&server.Address, "address", ":8443", "address to serve at, over TLS")
	flags.StringVar(&server.CertFile, "tls-cert-file", "", "certificate in PEM form; read again when it changes")
	flags.StringVar(&server.KeyFile, "tls-private-key-file", "", "its private key")
	flags.StringVar(&server.Rules.Driver, "driver-name", server.Rules.Driver, "name of the DRA driver whose parameters are checked")
	flags.StringSliceVar(&server.Rules.SingleShare, "single-share-classes", server.Rules.SingleShare, "DeviceClasses of which one request may have one device only")
	service.addFlags(flags)
	return cmd
}
