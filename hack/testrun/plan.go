// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// stage is one program to run: go test of some packages, or a command.
type stage struct {
	name string
	// command is run in place of go test. A failure is final: there is no test to repeat.
	command []string
	// after names a stage of another lane that has to end first. urgent is what others wait for: it is not nice.
	after  string
	urgent bool
	// packages are patterns of go test; in the module at dir, which is the repository's if empty.
	dir      string
	packages []string
	// race is whether the race detector is on, short whether tests that take minutes are left out.
	race, short bool
	// fresh is whether tests run though nothing changed that Go knows of: what they use besides is not in its cache's key.
	fresh bool
	// cluster is whether tests start a Kubernetes, which they do apart from other clusters (hack/apart).
	cluster bool
	timeout time.Duration
	env     []string
	// run and skip select tests, as with go test; only leaves those of them whose names match.
	run, skip string
	only      *regexp.Regexp
}

// lane runs its stages in order, workers at a time, beside other lanes. Once it is done, one of its workers helps nice ones.
type lane struct {
	stages  []stage
	workers int
	// nice lanes compute while others mostly wait.
	nice bool
}

// phase is what runs at one time. The next one starts when all lanes are done, and not at all if a command failed that the
// tests need.
type phase struct {
	lanes []lane
	// needed is whether the following phases need this one to succeed.
	needed bool
}

// core are the end-to-end tests of make test, by package: one of each thing that Cleave does on a real Kubernetes.
var core = map[string][]string{
	"./e2e": {
		"TestMIG_SevenPods",                // partitions created and destroyed, as a container sees them
		"TestMIG_WholeGPUWaits",            // counters keep a GPU with a partition from being allocated whole
		"TestMIG_ExtendedResource",         // nvidia.com/mig-1g.10gb
		"TestMPS_TwoServices",              // MPS shares
		"TestTimeSlice_FourNotebooks",      // time-sliced shares
		"TestPrepare_PluginKilled",         // kill -9 between two steps of Prepare
		"TestKubelet_Restarted",            // claims outlive the kubelet
		"TestContention_ForceDeletedPod",   // a GPU is not given to a second pod before the first one's container ended
		"TestCompatible_GPUsAndPartitions", // manifests written for NVIDIA's driver
		"TestExplain_Pending",              // cleave explain
	},
	"./e2e/chart": {
		"TestRelease_Lifecycle", // the chart installed, a pod of each tier, upgraded, uninstalled without a trace
	},
}

// concurrent are the packages whose product code or tests start goroutines: the race detector finds nothing in others.
var concurrent = []string{
	"./pkg/domain/store",
	"./pkg/driver/claims", "./pkg/driver/claimstatus", "./pkg/driver/cluster", "./pkg/driver/controller", "./pkg/driver/driverroot",
	"./pkg/driver/filewatch", "./pkg/driver/health", "./pkg/driver/mps/...", "./pkg/driver/nvml/...", "./pkg/driver/plugin",
	"./pkg/driver/publisher", "./pkg/driver/smi",
	"./pkg/tools/admission", "./pkg/tools/dashboard", "./pkg/tools/fleet", "./pkg/tools/pools",
	"./pkg/scheduler/gpupacking", "./pkg/sim/...",
}

// sequential are tests of those packages that start no goroutine, or load a library that the race detector does not see. They took 40 % of
// its time.
const sequential = "^Test(Crash_.*|Desired_(Invariants|UnpreparedStay)|SharedLibrary_Discovery|Sysfs.*)$"

// units are the packages of unit tests.
var units = []string{"./api/...", "./cmd/...", "./pkg/...", "./hack/...", "./e2e/cluster/...", "./e2e/cmd/...", "./e2e/conformance/...",
	"./e2e/history/...", "./e2e/process/...", "./e2e/release/...", "./e2e/resourcegen/...", "./e2e/soak/...", "./e2e/workload/..."}

// clusters are the packages of end-to-end tests, the long ones first.
var clusters = append([]string{"./e2e", "./e2e/nodes", "./e2e/soak", "./e2e/cluster", "./e2e/gpulane"}, withTools...)

// withTools are those that run programs of others besides a cluster. From empty caches these take 14 minutes to build, beside the
// packages that do without.
var withTools = []string{
	"./e2e/chart", "./e2e/scheduling", "./e2e/dashboard", "./e2e/aligned", "./e2e/launchers", "./e2e/operator", "./e2e/migration",
}

// tools builds those programs.
var tools = urgent(makes("build tools", "tools"))

func urgent(s stage) stage {
	s.urgent = true
	return s
}

func command(name string, args ...string) stage { return stage{name: name, command: args} }

func makes(name string, targets ...string) stage {
	return command(name, append([]string{"make", "--no-print-directory"}, targets...)...)
}

// builds compile what the tests run; each fills all processors by itself.
func builds(stages ...stage) []phase {
	return []phase{{needed: true, lanes: []lane{{workers: 1, stages: append([]stage{
		makes("build Cleave and the simulator", "build", "image-root", "helm"),
		command("build Kubernetes", "go", "run", "-trimpath", "./e2e/cmd/cluster", "build"),
	}, stages...)}}}}
}

// buildsOfRest are those of what make test leaves out.
func buildsOfRest() []phase {
	return builds(
		makes("build images", "images", "previous"),
		command("build Kubernetes' DRA driver", "go", "run", "-trimpath", "./e2e/cmd/cluster", "build", "-test-driver"),
	)
}

// unit are the unit tests. In make test the race detector is off. It is on in make test-all, over the packages with goroutines: there
// its lane takes 10m51s beside the end-to-end clusters, measured on two processors; one run with cold caches found one data race, in a
// test.
func unit() stage {
	return stage{name: "unit", packages: units, short: true, timeout: 10 * time.Minute}
}

func chartUnits() stage {
	return stage{name: "chart", packages: []string{"./e2e/chart"}, timeout: 10 * time.Minute}
}

// onCluster are the end-to-end tests of a package, all or with those of the core left out.
func onCluster(pkg string, withoutCore bool) stage {
	s := stage{name: strings.TrimPrefix(pkg, "./"), packages: []string{pkg}, cluster: true, fresh: true, timeout: 60 * time.Minute}
	if withoutCore && len(core[pkg]) > 0 {
		s.skip = anyOf(core[pkg])
	}
	return s
}

func corePackages() []stage {
	var stages []stage
	for _, pkg := range clusters {
		if len(core[pkg]) > 0 {
			s := onCluster(pkg, false)
			s.run, s.timeout = anyOf(core[pkg]), 20*time.Minute
			stages = append(stages, s)
		}
	}
	return stages
}

// anyOf is a pattern of go test for some tests.
func anyOf(tests []string) string { return "^(" + strings.Join(tests, "|") + ")$" }

// coreTests is what make test runs.
func coreTests() phase {
	return phase{lanes: []lane{
		{workers: 2, stages: corePackages()},
		{workers: 1, nice: true, stages: []stage{unit(), chartUnits()}},
	}}
}

// rest is what make test leaves out.
func rest(withoutCore bool) phase {
	var onClusters []stage
	for _, pkg := range clusters {
		s := onCluster(pkg, withoutCore)
		if slices.Contains(withTools, pkg) {
			s.after = tools.name
		}
		s.env = []string{"CLEAVE_IMAGES={bin}/images", "CLEAVE_PREVIOUS={bin}/previous"}
		onClusters = append(onClusters, s)
	}
	return phase{lanes: []lane{
		{workers: 2, stages: onClusters},
		// What others wait for, then the longest.
		{workers: 2, nice: true, stages: []stage{
			tools,
			{name: "race detector", packages: concurrent, race: true, short: true, skip: sequential, timeout: 30 * time.Minute},
			makes("lint", "lint"),
			{name: "packing", packages: []string{"./e2e/packing/..."}, fresh: true, timeout: 60 * time.Minute},
			// The race detector would make each start of a plugin slow.
			{name: "kills", packages: []string{"./pkg/driver/claims"}, run: "^Test(Preparer|Modes)_Killed", timeout: 30 * time.Minute},
			// They build programs of other packages, which the cache of test results does not see.
			{
				name: "programs", packages: []string{"./cmd/nvml-sim", "./e2e/history/broken", "./pkg/driver/mps/supervisor"},
				fresh: true, timeout: 30 * time.Minute,
			},
			// As the scheduler itself is compiled.
			{name: "scheduler", dir: "cmd/cleave-scheduler", packages: []string{"./..."}, env: []string{"CGO_ENABLED=0"}, timeout: 20 * time.Minute},
			{name: "kubeadm", dir: "e2e/kubeadm", packages: []string{"./..."}, env: []string{"CGO_ENABLED=0"}, timeout: 20 * time.Minute},
			{name: "release", dir: "hack/release", packages: []string{"./..."}, timeout: 20 * time.Minute},
			makes("fuzz", "fuzz", "FUZZTIME=5s"),
		}},
	}}
}

// plan is what to run by its name.
func plan(name string) ([]phase, error) {
	switch name {
	case "core":
		return append(builds(), coreTests()), nil
	case "rest":
		return append(buildsOfRest(), rest(true)), nil
	case "all":
		all := rest(false)
		all.lanes[1].stages = append([]stage{unit(), chartUnits()}, all.lanes[1].stages...)
		return append(buildsOfRest(), all), nil
	}
	return nil, usageError{fmt.Errorf("there is no plan %q; there are core, rest and all", name)}
}

// chosen reduces the last phase to the tests that match, and what they need. "core" are the end-to-end tests of make test.
func chosen(phases []phase, tests string) ([]phase, error) {
	if tests == "core" {
		tests = ""
		for _, pkg := range clusters {
			for _, name := range core[pkg] {
				tests += "|" + name
			}
		}
		tests = "^(" + tests[1:] + ")$"
	}
	re, err := regexp.Compile(tests)
	if err != nil {
		return nil, usageError{fmt.Errorf("TESTS is no regular expression: %w", err)}
	}
	last, first := &phases[len(phases)-1], &phases[0].lanes[0]
	var lanes []lane
	for _, l := range last.lanes {
		var stages []stage
		for _, s := range l.stages {
			if s.name == tools.name {
				first.stages = append(first.stages, s)
			}
			if len(s.command) == 0 {
				s.only, s.fresh, s.after = re, true, ""
				stages = append(stages, s)
			}
		}
		l.stages, l.nice = stages, false
		lanes = append(lanes, l)
	}
	last.lanes = lanes
	return phases, nil
}
