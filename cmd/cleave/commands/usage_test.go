// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/cli"
)

// Each command line is told what is wrong with it, and where the usage is, and does nothing.
func TestRun_UsageErrors(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	t.Setenv("IMPORT_FORMAT", "")
	file, workload := writeFile(t, "a.yaml", "version: v1"), writeFile(t, "small.yaml", smallWorkload)
	unknown := writeFile(t, "b.yaml", "version: v1\nmig-configs: {c: [{devices: all, mig-enabled: true, mig-devices: {1c.3g.40gb: 1}}]}")
	const (
		ofParted = " --node-model t4 --import-format mig-parted --policy "
		unnamed  = "name what to explain: pod NAME, claim NAME, template NAME, or -f FILE"
	)
	for line, says := range map[string][]string{
		"": {"subcommand is needed: advise, claim, completion, cordon, dashboard, explain, import, inspect, repack, simulate, slices, " +
			"uncordon, validate, version", "'cleave --help'"},
		"frobnicate": {`unknown subcommand "frobnicate"`},
		"slice":      {`"slice"`, "did you mean slices?"},
		"--nope":     {"--nope"},

		"advise --selector a":                       {"--selector needs --prometheus"},
		"advise --since 24h":                        {"--since needs --prometheus"},
		"advise --prometheus http://p --since 30m":  {"--since 30m0s is less than"},
		"advise --margin -1":                        {"--margin -1 is not in 0 to 10"},
		"advise --prometheus http://p --margin NaN": {"--margin NaN is not in 0 to 10"},
		"advise --prometheus http://p --seen 200h":  {"--seen 200h0m0s is more than"},
		"advise --seen 0s":                          {"--seen 0s is not more than 0"},
		"advise --prometheus http://p -o wide":      {`--output "wide" is not one of tab`},
		"advise web":                                {"unexpected argument"},

		"claim":                                  {"no short form is given: expected are parts between commas"},
		"claim 4 gpuss":                          {`"4 gpuss" is not known: did you mean "4 gpus"?`},
		"claim 2 1g.10g":                         {`"2 1g.10g" is not known: did you mean "2 1g.10gb"?`},
		"claim 1 gpu -o table":                   {`--output "table" is not one of yaml, json`},
		"claim 1 gpu --driver-name A":            {"--driver-name"},
		"claim 1 gpu --name A":                   {`--name "A" cannot be the name of an object`},
		"claim 1 gpu --nic-class=":               {`--nic-class "" cannot be the name of an object`},
		"claim 1 gpu --numa-attribute numaNode":  {`--numa-attribute "numaNode" is not the name of an attribute with`},
		"cordon node-1":                          {"at least one of its GPUs"},
		"dashboard --prometheus prometheus:9090": {"--prometheus", "http://prometheus.monitoring:9090"},
		`dashboard --prometheus-selector a="b"`:  {"--prometheus-selector needs --prometheus"},

		"explain":                       {unnamed},
		"explain trainer":               {unnamed},
		"explain node n":                {`"node" is not one of pod, claim, template`},
		"explain pod a b":               {unnamed},
		"explain pod a -o yaml":         {`--output "yaml" is not one of text, json`},
		"explain pod a -f f.yaml":       {`unexpected argument "pod": -f names what to explain`},
		"explain pod a --driver-name _": {},

		"import":              {"name the kind of file: device-plugin or mig-parted"},
		"import hami " + file: {`unknown kind of file "hami": choose device-plugin or mig-parted`},
		"import mig-parted":   {"name a file, or - for the standard input"},
		"import device-plugin " + file + " x --name x":      {"--name goes with one file"},
		"import device-plugin " + file + " --driver-name X": {"--driver-name"},

		"inspect node-1":                           {`unexpected argument "node-1": for a node of the cluster, cleave inspect --from-cluster node-1`},
		"inspect -o xml":                           {`--output "xml"`, "table, wide, json, yaml", "'cleave inspect --help'"},
		"inspect --form-cluster n":                 {"--form-cluster"},
		"inspect --kubeconfig x":                   {"--kubeconfig", "--from-cluster"},
		"inspect --from-cluster=":                  {"--from-cluster is empty"},
		"inspect --from-cluster Node_1":            {"Node_1"},
		"inspect --from-cluster a b":               {`unexpected argument "b"`},
		"inspect --from-cluster n --node-model t4": {"--node-model has no effect with --from-cluster"},
		"inspect --driver-name No_Name":            {"--driver-name"},
		"inspect --import-format hami":             {"--import-format"},
		"inspect --from-cluster n --driver-root /x --policy p --mps-socket s": {
			"--driver-root has no effect", "--policy has no effect", "--mps-socket has no effect"},

		"repack --every 10m":                            {"for --apply, which is not set"},
		"repack --apply -o json":                        {"leave out --apply"},
		"repack --apply --every 10m --dry-run=server":   {"--dry-run is not for --every"},
		"repack --apply --dry-run=client":               {`--dry-run "client" is not one of`},
		"repack --apply --every 10m --time-zone Mars/X": {"--time-zone: unknown time zone Mars/X"},
		"repack node-1":                                 {"unexpected argument"},

		"simulate":                {"--workload is empty"},
		"simulate -w absent.yaml": {"no such file"},
		"simulate -w " + writeFile(t, "odd.yaml", "duration: 1h\npods: 3"): {"odd.yaml: decode the workload"},
		"simulate -w " + workload + " --nodes 0":                           {"--nodes 0 is not in 1 to 5000"},
		"simulate -w " + workload + " -o png":                              {`--output "png"`},
		"simulate -w " + workload + " --strategies pack,pack":              {`"pack" is unknown or there twice`},
		"simulate -w " + workload + " --strategies fast":                   {`"fast" is unknown`},
		"simulate -w " + workload + " --node-model h42":                    {"h42"},
		"simulate -w " + workload + " --policy-name absent":                {"absent"},
		"simulate -w " + workload + " now":                                 {`unexpected argument "now"`},

		"slices --nope":                             {"--nope", "'cleave slices --help'"},
		"slices -z":                                 {"-z"},
		"slices --output xml":                       {"--output", `"xml"`, "table, json, yaml"},
		"slices -oxml":                              {"--output", `"xml"`},
		"slices --node-name":                        {"--node-name"},
		"slices node-1":                             {`unexpected argument "node-1"`},
		"slices --node-model hgx-h1000":             {`"hgx-h1000"`, "hgx-h100"},
		"slices --node-model t4 --nvml-library /x":  {"node-model", "nvml-library"},
		"slices --node-model t4 --node-name Node_1": {"--node-name", "Node_1"},
		"slices --import-format hami":               {`invalid argument "hami" for "--import-format" flag: it is not one of policy, device-plugin, mig-parted`},
		"slices --node-model t4 --policy " + file:   {"set apiVersion and kind"},
		"slices" + ofParted + filepath.Join(importData, "mig-parted-custom.yaml") + " --policy-name x": {"choose one of custom-config"},
		"slices" + ofParted + unknown + " --policy-name c":                                             {`mig-configs[c][0].mig-devices[1c.3g.40gb]: no equivalent`},

		"validate":             {"there is nothing to check: name files or directories with -f"},
		"validate policy.yaml": {`unexpected argument "policy.yaml": name files with -f policy.yaml`},
		"validate -f " + policies + "/trainig.yaml":                    {"did you mean " + policies + "/training.yaml?"},
		"validate -f " + policies + " --this-node --node-model t4":     {"--this-node and --node-model exclude each other"},
		"validate -f " + policies + " --driver-root /x":                {"--driver-root is about this machine: add --this-node"},
		"validate -f " + policies + " --policy-name training":          {"--policy-name selects the policy of a node: add --node-model or --this-node"},
		"validate -f " + policies + " --node-model t4 --policy-name x": {`there is no policy "x": choose one of development, existing, inference`},
		"validate -f " + policies + " --node-model t5":                 {`unknown node model "t5": choose one of`},
		"validate -f " + policies + " --driver-name A_B":               {"--driver-name"},
		"validate --fiel " + policies:                                  {"unknown flag: --fiel"},
		"validate -f":                                                  {"flag needs an argument: 'f'"},
	} {
		checkUsage(t, strings.Fields(line), says...)
	}
	checkUsage(t, []string{"repack", "--apply", "--window", "Mon 10:00-11:00"}, "for --every, which is not set")
	checkUsage(t, []string{"repack", "--apply", "--every", "10m", "--window", "Mo 10:00-11:00"}, "days are Mon to Sun")
}

func checkUsage(t *testing.T, args []string, says ...string) {
	t.Helper()
	got := cleave(t, args...)
	if got.code != cli.ExitUsage || got.stdout != "" {
		t.Errorf("%q: got code %d, stdout %q, stderr %q; want %d and nothing", args, got.code, got.stdout, got.stderr, cli.ExitUsage)
	}
	for _, want := range append(says, "cleave: ", " --help' for usage.") {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("%q: stderr %q does not say %q", args, got.stderr, want)
		}
	}
}
