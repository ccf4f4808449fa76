// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/tools/podfile"
)

// recipe is what the commands say of one.
type recipe struct {
	// model of the nodes, hgx-h100 if empty.
	model string
	// fits are the pods, of those that explain says so of.
	fits int
	// validated is the line of validate.
	validated string
	// lacks is what explain does not find, as another driver makes it.
	lacks string
}

var recipes = map[string]recipe{
	"aligned": {validated: "ok: ResourceClaimTemplate aligned, Pod aligned", lacks: "DeviceClass dra.cpu does not exist"},
	"compute-domain": {model: "gb200-nvl72", validated: "ok: ResourceClaimTemplate mesh-gpus, Job mesh; passed over: ComputeDomain",
		lacks: "ResourceClaimTemplate mesh-channel does not exist"},
	"dcgm-exporter": {validated: "nothing to check: passed over: DaemonSet"},
	"drain":         {validated: "nothing to check: passed over: DeviceTaintRule, PodDisruptionBudget"},
	"fast-model-actuation": {fits: 2, validated: "ok: ResourceClaimTemplate fma/every-gpu, LauncherConfig fma/fma-launcher, " +
		"Deployment fma/fma-requester; passed over: Namespace, LauncherPopulationPolicy, InferenceServerConfig"},
	"gpu-memory-service":      {fits: 1, validated: "ok: ResourceClaimTemplate vllm-agg-failover-vllmworker-gpu, Pod vllm-agg-failover-vllmworker"},
	"jobset":                  {fits: 1, validated: "ok: ResourceClaimTemplate training, JobSet training; passed over: ConfigMap"},
	"kubeflow-notebook":       {fits: 1, validated: "ok: Notebook notebook"},
	"leaderworkerset":         {fits: 2, validated: "ok: ResourceClaimTemplate eight-gpus, LeaderWorkerSet llama"},
	"ray":                     {fits: 1, validated: "ok: ResourceClaimTemplate ray-worker, RayCluster ray"},
	"replicas-apart":          {fits: 1, validated: "ok: ResourceClaimTemplate search, Deployment search"},
	"replicas-apart-one-node": {fits: 2, validated: "ok: ResourceClaim pair, Deployment pair-a, Deployment pair-b"},
	"team-quota":              {validated: "nothing to check: passed over: Namespace, ResourceQuota"},
	"triton":                  {fits: 1, validated: "ok: ResourceClaimTemplate triton, Deployment triton"},
	"two-containers":          {fits: 1, validated: "ok: ResourceClaimTemplate rag, Pod rag"},
	"vllm":                    {fits: 1, validated: "ok: ResourceClaimTemplate vllm, Deployment vllm; passed over: Service"},
}

const recipesDir = examples + "/recipes"

// published are a Node of a model, and its slices.
func published(t *testing.T, model, node string, rules *v1alpha1.NodePolicy) []runtime.Object {
	t.Helper()
	return append([]runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}}, slicesOf(t, model, "gpu.cleave.dev", node, rules)...)
}

// sharedPartitions is the example of a policy with shared partitions.
func sharedPartitions(t *testing.T) *v1alpha1.NodePolicy {
	t.Helper()
	data, err := os.ReadFile(policies + "/shared-partitions.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := v1alpha1.DecodeNodePolicy(data)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func recipeFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(recipesDir, name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestRecipes(t *testing.T) {
	var names []string
	files, err := filepath.Glob(recipesDir + "/*.yaml")
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".yaml"))
	}
	slices.Sort(names)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(recipes)), names); diff != "" || err != nil {
		t.Fatalf("recipes (-known +there), %v:\n%s", err, diff)
	}
	for name, want := range recipes {
		t.Run(name, func(t *testing.T) {
			model := want.model
			if model == "" {
				model = "hgx-h100"
			}
			node := published(t, model, "gpu-7", everyTier)
			node[0].(*corev1.Node).Labels = map[string]string{v1alpha1.PolicyLabel: "launchers"} // which one recipe selects
			client := cluster(t, append(classes(t), node...)...)
			got, err := explained(t, &asker{client: client, namespace: "team", driver: "gpu.cleave.dev"}, recipeFile(t, name), "text")
			if (err != nil) != (want.lacks != "") || !strings.Contains(got.stdout, want.lacks) {
				t.Errorf("explain: %v\n%s", err, got.stdout)
			}
			if fits := strings.Count(got.stdout, " fits:\n"); fits != want.fits {
				t.Errorf("explain: %d fit, want %d:\n%s", fits, want.fits, got.stdout)
			}
			path := filepath.Join(recipesDir, name+".yaml")
			checked := cleave(t, "validate", "-f", path, "--node-model", model)
			if checked.code != cli.ExitOK || !strings.Contains(checked.stdout, path+": "+want.validated+"\n") {
				t.Errorf("validate: %d, %s%s", checked.code, checked.stdout, checked.stderr)
			}
		})
	}
}

// foreign are the kinds that are not Kubernetes's, which TestRecipes_Decode cannot decode.
var foreign = []string{
	"fma.llm-d.ai/v1alpha1, Kind=InferenceServerConfig", "fma.llm-d.ai/v1alpha1, Kind=LauncherConfig",
	"fma.llm-d.ai/v1alpha1, Kind=LauncherPopulationPolicy", "jobset.x-k8s.io/v1alpha2, Kind=JobSet", "kubeflow.org/v1, Kind=Notebook", "leaderworkerset.x-k8s.io/v1, Kind=LeaderWorkerSet",
	"ray.io/v1, Kind=RayCluster", "resource.nvidia.com/v1beta1, Kind=ComputeDomain",
}

// TestRecipes_Decode decodes what cleave passes over as strictly as the API server with kubectl's default of --validate.
func TestRecipes_Decode(t *testing.T) {
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	pinned := regexp.MustCompile(`^[a-z0-9./-]+:v?[0-9][\w.-]*$`)
	for name := range recipes {
		text := recipeFile(t, name)
		documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			_, kind, err := strict.Decode(document, nil, nil)
			if known := runtime.IsNotRegisteredError(err) && kind != nil && slices.Contains(foreign, kind.String()); err != nil && !known {
				t.Errorf("%s: %v", name, err)
			}
		}
		for line := range strings.Lines(text) {
			if _, image, ok := strings.Cut(line, " image: "); ok && !pinned.MatchString(strings.TrimSpace(image)) {
				t.Errorf("%s: the image %s is not of a release", name, image)
			}
		}
	}
}

// TestRecipes_Scripts: a container runs a program of a ConfigMap from where it is mounted.
func TestRecipes_Scripts(t *testing.T) {
	ran := 0
	for name := range recipes {
		held := map[string][]string{} // files by ConfigMap
		var pods []podfile.Pod
		for document := range strings.SplitSeq(recipeFile(t, name), "\n---\n") {
			var config corev1.ConfigMap
			if err := yaml.Unmarshal([]byte(document), &config); err == nil && config.Kind == "ConfigMap" {
				held[config.Name] = slices.Sorted(maps.Keys(config.Data))
			}
			raw, err := yaml.YAMLToJSON([]byte(document))
			if err != nil {
				t.Fatal(err)
			}
			found, err := podfile.In(raw)
			if err != nil {
				t.Fatal(err)
			}
			pods = append(pods, found...)
		}
		for _, pod := range pods {
			for _, c := range podfile.Containers(&pod.Spec) {
				mounted := mountedFiles(&pod.Spec, &c, held)
				for _, word := range strings.Fields(strings.Join(slices.Concat(c.Command, c.Args), " ")) {
					if want, ok := mounted[path.Base(word)]; ok && path.IsAbs(word) {
						ran++
						if word != want {
							t.Errorf("%s: container %s runs %s, which is mounted at %q", name, c.Name, word, want)
						}
					}
				}
			}
		}
	}
	if ran == 0 {
		t.Error("no recipe runs a program of a ConfigMap")
	}
}

// mountedFiles are the paths of files of the pod's ConfigMaps in a container, by name; empty for what it does not mount.
func mountedFiles(pod *corev1.PodSpec, c *corev1.Container, held map[string][]string) map[string]string {
	files := map[string]string{}
	for _, volume := range pod.Volumes {
		if volume.ConfigMap == nil {
			continue
		}
		for _, file := range held[volume.ConfigMap.Name] {
			files[file] = ""
			for _, mount := range c.VolumeMounts {
				if mount.Name == volume.Name {
					files[file] = path.Join(mount.MountPath, file)
				}
			}
		}
	}
	return files
}

// TestRecipes_Quota: a class that a quota does not name has no limit.
func TestRecipes_Quota(t *testing.T) {
	var existing []string
	for _, c := range classes(t) {
		existing = append(existing, c.(metav1.Object).GetName())
	}
	want := map[string]bool{}
	for _, object := range append(slicesOf(t, "hgx-h100", "gpu.cleave.dev", "node", everyTier), slicesOf(t, "hgx-h100", "gpu.cleave.dev", "node", sharedPartitions(t))...) {
		for _, d := range object.(*resourceapi.ResourceSlice).Spec.Devices {
			kind := *d.Attributes["type"].StringValue
			want[kind+".cleave.dev"] = true
			if profile := d.Attributes["profile"].StringValue; kind == "mig" && profile != nil {
				if class := "mig-" + strings.ReplaceAll(*profile, "+", ".") + ".cleave.dev"; slices.Contains(existing, class) {
					want[class] = true
				}
			}
		}
	}
	got := map[string]bool{}
	for line := range strings.Lines(recipeFile(t, "team-quota")) {
		if class, _, ok := strings.Cut(strings.TrimSpace(line), corev1.ResourceClaimsPerClass+":"); ok {
			got[class] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("classes (-with devices of an H100 +with a quota):\n%s", diff)
	}
}
