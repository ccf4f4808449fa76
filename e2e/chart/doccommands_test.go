// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	cleavenode "github.com/cleave-dra/cleave/cmd/cleave-node/commands"
	cleave "github.com/cleave-dra/cleave/cmd/cleave/commands"
)

// docCommand is a command of the documentation: the stages of a pipeline, each in words.
type docCommand struct {
	where  string
	text   string
	stages [][]string
	// inline is a command in a sentence, which may be the mere name of one: `kubectl drain`.
	inline bool
}

// notChecked are other projects' programs that tests lack, whose commands are passed over.
var notChecked = []string{"nvidia-smi", "jq", "sed", "docker", "gpu-lane"}

// checked are the programs whose commands are checked, by the name they have in the documentation.
var checked = []string{"kubectl", "helm", "cleave", "cleave-node", "nvml-sim", "make"}

var (
	fence      = regexp.MustCompile("^\\s*```(\\w*)")
	codeSpan   = regexp.MustCompile("`([^`]+)`")
	makeTarget = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
)

// docCommands lists the commands of README, CONTRIBUTING and docs/, in blocks of code without a language and in sentences.
// reference.md is made from the code.
func docCommands(t *testing.T) []docCommand {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(source, "docs", "*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no documentation: %v", err)
	}
	files = append(files, filepath.Join(source, "README.md"), filepath.Join(source, "CONTRIBUTING.md"))
	files = slices.DeleteFunc(files, func(file string) bool { return filepath.Base(file) == "reference.md" })
	var all []docCommand
	for _, file := range files {
		data := readFile(t, file)
		all = append(all, commandsOf(filepath.Base(file), string(data))...)
	}
	if len(all) < 80 {
		t.Fatalf("only %d commands were found", len(all))
	}
	return all
}

// commandsOf finds the commands of one file of Markdown.
func commandsOf(name, text string) []docCommand {
	var all []docCommand
	inCode, joined := "no", ""
	for n, line := range strings.Split(text, "\n") {
		where := fmt.Sprintf("%s:%d", name, n+1)
		if m := fence.FindStringSubmatch(line); m != nil {
			switch {
			case inCode != "no":
				inCode = "no"
			case slices.Contains([]string{"", "sh", "bash", "console"}, m[1]):
				inCode = "shell"
			default:
				inCode = m[1]
			}
			continue
		}
		switch inCode {
		case "no":
			for _, span := range codeSpan.FindAllStringSubmatch(line, -1) {
				all = append(all, parse(where, span[1], true)...)
			}
		case "shell":
			joined += strings.TrimPrefix(strings.TrimSpace(line), "$ ")
			if before, ok := strings.CutSuffix(joined, "\\"); ok {
				joined = before
				continue
			}
			all = append(all, parse(where, joined, false)...)
			joined = ""
		}
	}
	return all
}

// parse gives the commands of a line that are joined by && and by ;. What does not begin with the name of a program is none.
func parse(where, line string, inline bool) []docCommand {
	var all []docCommand
	current := docCommand{where: where, inline: inline, stages: [][]string{nil}}
	end := func() {
		if c := current; len(c.stages[0]) > 0 && slices.Contains(slices.Concat(checked, notChecked), filepath.Base(c.stages[0][0])) {
			var stages []string
			for i := range c.stages {
				c.stages[i][0] = filepath.Base(c.stages[i][0])
				stages = append(stages, strings.Join(c.stages[i], " "))
			}
			c.text = strings.Join(stages, " | ")
			all = append(all, c)
		}
		current = docCommand{where: where, inline: inline, stages: [][]string{nil}}
	}
	for _, word := range shellWords(line) {
		switch last := len(current.stages) - 1; word {
		case "&&", ";":
			end()
		case "|":
			current.stages = append(current.stages, nil)
		default:
			current.stages[last] = append(current.stages[last], word)
		}
	}
	end()
	return all
}

// shellWords splits a line as a shell does, as far as documentation needs it: quotes, comments, and no output to files.
func shellWords(line string) []string {
	var words []string
	word, open, begun := "", rune(0), false
	flush := func() {
		if begun {
			words = append(words, word)
		}
		word, begun = "", false
	}
	for _, r := range line {
		switch {
		case open != 0 && r == open:
			open = 0
		case open != 0:
			word += string(r)
		case r == '\'' || r == '"':
			open, begun = r, true
		case r == ' ':
			flush()
		case r == '#' && !begun:
			return withoutOutput(words)
		case r == ';' || r == '|':
			flush()
			words = append(words, string(r))
		default:
			word, begun = word+string(r), true
		}
	}
	flush()
	return withoutOutput(words)
}

func withoutOutput(words []string) []string {
	if i := slices.Index(words, ">"); i >= 0 && i+1 < len(words) {
		return slices.Delete(words, i, i+2)
	}
	return words
}

func TestDocs_ShellWords(t *testing.T) {
	got := parse("x:1", `kubectl get pods -o jsonpath='{.a b}' | cleave validate -f - > out; make demo && ls # more`, false)
	var texts []string
	for _, c := range got {
		texts = append(texts, c.text)
	}
	if want := []string{"kubectl get pods -o jsonpath={.a b} | cleave validate -f -", "make demo"}; !slices.Equal(want, texts) {
		t.Errorf("got %q, want %q", texts, want)
	}
}

// TestDocs_CommandsExist holds every command of the documentation against the programs: targets, subcommands, flags, and
// files of the repository.
func TestDocs_CommandsExist(t *testing.T) {
	for _, c := range docCommands(t) {
		for _, words := range c.stages {
			if err := exists(t, words, c.inline); err != nil {
				t.Errorf("%s: %s: %v", c.where, c.text, err)
			}
			for _, word := range words {
				if i := strings.Index(word, "deployments/"); i >= 0 {
					if _, err := os.Stat(filepath.Join(source, word[i:])); err != nil {
						t.Errorf("%s: %s: %v", c.where, c.text, err)
					}
				}
			}
		}
	}
}

// exists says what of a command is not there.
func exists(t *testing.T, words []string, inline bool) error {
	switch program, args := words[0], words[1:]; {
	case program == "cleave":
		return takes(cleave.New(program), args, inline)
	case program == "cleave-node":
		return takes(cleavenode.New(), args, inline)
	case program == "nvml-sim":
		return programTakes(filepath.Join(source, "bin", "nvml-sim"), args)
	case program == "helm":
		return programTakes(filepath.Join(source, "bin", "helm"), args)
	case program == "make":
		data := readFile(t, filepath.Join(source, "Makefile"))
		for _, target := range args {
			if strings.Contains(target, "=") {
				continue // a variable
			}
			if !slices.ContainsFunc(makeTarget.FindAllStringSubmatch(string(data), -1), func(m []string) bool { return m[1] == target }) {
				return fmt.Errorf("there is no target %s", target)
			}
		}
	case program != "kubectl" && !slices.Contains(notChecked, program):
		return fmt.Errorf("%s is no program that the tests know", program)
	}
	return nil
}

// takes parses a command line of a program.
func takes(root *cobra.Command, args []string, inline bool) error {
	if len(args) == 0 {
		return nil
	}
	command, rest, err := root.Find(args)
	if err != nil || command == root {
		return fmt.Errorf("there is no such subcommand: %w", err)
	}
	if last := len(rest) - 1; inline && last >= 0 && strings.HasPrefix(rest[last], "-") && takesValue(command, rest[last]) {
		rest = append(slices.Clone(rest), "VALUE") // the flag is only named
	}
	return command.ParseFlags(rest)
}

func takesValue(command *cobra.Command, word string) bool {
	name := strings.TrimLeft(word, "-")
	var flag *pflag.Flag
	if strings.HasPrefix(word, "--") {
		flag = command.Flags().Lookup(name)
	} else if len(name) == 1 {
		flag = command.Flags().ShorthandLookup(name)
	}
	return flag != nil && flag.NoOptDefVal == ""
}

// programTakes looks for the long flags of a command in the help of its subcommand.
func programTakes(program string, args []string) error {
	var subcommand []string
	for _, word := range args {
		if strings.HasPrefix(word, "-") || strings.Contains(word, "/") || len(subcommand) == 1 {
			break
		}
		subcommand = append(subcommand, word)
	}
	help, err := exec.Command(program, append(subcommand, "--help")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, help)
	}
	for _, word := range args {
		flag, _, _ := strings.Cut(word, "=")
		if strings.HasPrefix(flag, "--") && !regexp.MustCompile(regexp.QuoteMeta(flag)+`\b`).Match(help) {
			return fmt.Errorf("there is no flag %s", flag)
		}
	}
	return nil
}

// cannotRun are the commands that a cluster of tests cannot run, with the reason. Every entry is used.
var cannotRun = map[string]string{
	"kubectl label nodes -l LABEL=paused-by-cleave LABEL=true --overwrite":                            "no client is paused",
	"kubectl get configmap -n gpu-operator default-mig-parted-config -o yaml":                         "the GPU operator is not here",
	"kubectl get -n gpu-operator configmap/device-plugin-config clusterpolicy/cluster-policy -o yaml": "the GPU operator is not here",
	"cleave validate -f deployment.yaml --node-model hgx-h100":                                        "a file of the reader's",
	"kubectl -n cleave-system get pods -l app.kubernetes.io/component=scheduler":                      "the scheduler is off by default",
	"kubectl create namespace cleave-system":                                                          "the release is in it",
	"kubectl apply -f cleave/deviceclasses.yaml":                                                      "cleave import writes it",
	"kubectl -n cleave-system port-forward service/cleave-dashboard 8080:80":                          "it runs until it is stopped",
	"kubectl -n cleave-system exec POD -- /usr/bin/cleave-node mps-supervisor status":                 "the pod of a node that the reader chooses",
	"kubectl -n cleave-system port-forward POD 8080":                                                  "it runs until it is stopped",
	"kubectl taint node NODE node.kubernetes.io/out-of-service-":                                      "the node has no such taint",
	"kubectl -n cleave-system logs POD --previous":                                                    "no plugin has restarted",
	"kubectl -n monitoring port-forward service/prometheus 9090":                                      "it runs until it is stopped",
	"kubectl get events -A --field-selector reason=RepackEvicts":                                      "nothing is repacked here",
	"kubectl cleave explain pod trainer":                                                              "a pod of the reader's",
	"kubectl cleave inspect":                                                                          "the plugin of kubectl is not installed",
	"kubectl cleave inspect NODE":                                                                     "the plugin of kubectl is not installed",
	"kubectl cleave inspect NODE -o wide":                                                             "the plugin of kubectl is not installed",
	"kubectl cleave inspect -o wide":                                                                  "the plugin of kubectl is not installed",
	"kubectl cleave inspect -o json":                                                                  "the plugin of kubectl is not installed",
	"kubectl get nodes -l nvidia.com/gpu.product=NVIDIA-L40S":                                         "what was done before, with GPU feature discovery",
	"kubectl get pods -n cleave-system -l app.kubernetes.io/component=scheduler":                      "the scheduler is off by default",
	"kubectl delete devicetaintrules -l app.kubernetes.io/managed-by=cleave-scheduler":                "no device is allocated twice here",
	"kubectl taint node NODE gpu.cleave.dev/repack-":                                                  "nothing is repacked here",
	"kubectl describe pod":                                                                            "a name in a sentence; there may be no pod",
	"cleave validate -f cleave/policies --policy-name all-balanced --node-model hgx-h100":             "cleave import writes it",
	"cleave slices --policy cleave/policies --policy-name all-balanced --node-model hgx-h100":         "cleave import writes it",
	"cleave validate -f claim.yaml --node-model hgx-h100":                                             "a file of the reader's",
	"cleave validate -f policies/ --policy-name inference --this-node":                                "the machine of the tests has no GPU",
}

// docsRun runs the commands of the documentation on a release: what reads as it stands, what changes something as a dry
// run of the API server's. Selectors that select nothing are mistakes.
func docsRun(t *testing.T, ctx context.Context) {
	example(t, ctx, "one-gpu", nil)
	used := map[string]bool{}
	commands := docCommands(t)
	commands = append(commands, commandsOf("NOTES.txt", "```\n"+helmOn(t, "", "get", "notes", "cleave")+"```\n")...)
	for _, c := range commands {
		words := c.stages[0]
		if cannotRun[strings.Join(words, " ")] != "" {
			used[strings.Join(words, " ")] = true
			continue
		}
		if c.inline && len(words) < 3 && words[0] == "kubectl" {
			continue // the name of a command
		}
		if err := runDocumented(ctx, words); err != nil {
			t.Errorf("%s: %s: %v", c.where, c.text, err)
		}
	}
	for command, why := range cannotRun {
		if !used[command] {
			t.Errorf("no documentation has %q any more, which is excepted: %s", command, why)
		}
	}
}

// runDocumented runs a command with the names of this cluster.
func runDocumented(ctx context.Context, words []string) error {
	names := strings.NewReplacer("NODE", env.cluster.NodeName(), "POD", "one-gpu", "NAMESPACE", demo, "deployments/", source+"/deployments/",
		"policies/", source+"/deployments/examples/policies/")
	var args []string
	for _, word := range words[1:] {
		if strings.Contains(word, "deployments/examples/policies/") {
			word = strings.ReplaceAll(word, "deployments/examples/policies/", "policies/")
		}
		args = append(args, names.Replace(word))
	}
	switch words[0] {
	case "kubectl":
		return runKubectl(ctx, args)
	case "cleave":
		reads := len(args) > 0 && (args[0] == "repack" && !slices.Contains(args, "--apply") || args[0] == "advise" && !slices.Contains(args, "--prometheus"))
		if !reads && !slices.ContainsFunc(args, func(a string) bool { return a == "--from-cluster" || a == "--node-model" }) {
			return nil // about the machine it runs on; the flags are checked without a cluster
		}
		command := exec.CommandContext(ctx, filepath.Join(source, "bin", "cleave"), args...)
		command.Env = append(os.Environ(), "KUBECONFIG="+env.cluster.Kubeconfig())
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}

func runKubectl(ctx context.Context, args []string) error {
	verb := slices.IndexFunc(args, func(a string) bool {
		return slices.Contains([]string{"get", "describe", "logs", "exec", "rollout", "label", "delete", "apply", "create", "cordon", "uncordon", "drain", "taint"}, a)
	})
	if verb < 0 {
		return fmt.Errorf("kubectl %s: the test does not know what it does", strings.Join(args, " "))
	}
	switch args[verb] {
	case "get", "describe", "logs", "exec", "rollout":
	case "drain":
		args = append(slices.Clone(args), "--dry-run=server", "--force") // pods of tests have no controller
	default:
		args = append(slices.Clone(args), "--dry-run=server")
	}
	out, err := env.client.Kubectl(ctx, "", args...)
	if err != nil {
		return err
	}
	if strings.Contains(out, "No resources found") || strings.TrimSpace(out) == "" && !strings.Contains(strings.Join(args, " "), "jsonpath") {
		return fmt.Errorf("it finds nothing: %q", out)
	}
	return nil
}
