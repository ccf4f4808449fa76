package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/sirupsen/logrus"
	urfave "github.com/urfave/cli/v3"

	"github.com/cleave-dra/cleave/pkg/cdi"
)

// runHook behaves as NVIDIA's nvidia-cdi-hook of the same toolkit release that writes the specs: a hook program of
// another release passes over hooks it does not know with a warning, and the container lacks something.
func runHook(args []string) int {
	command := commands.ConfigureCDIHookCommand(logrus.New(), &urfave.Command{
		Name:  cdi.HookName,
		Usage: "set up driver files inside a container, called by container runtimes as CDI specs say",
	})
	if err := command.Run(context.Background(), args); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", cdi.HookName, err)
		return exitFailed
	}
	return exitOK
}
