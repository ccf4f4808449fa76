// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/cmd/cleave/commands"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// answer is what one of the three says of a manifest: all of its words are said, and with a code. Of the API server the code is 1 where it
// refuses.
type answer struct {
	code  int
	words []string
}

// ok has no complaint, and says these words.
func ok(words ...string) answer { return answer{0, words} }

// bad has complaints.
func bad(words ...string) answer { return answer{1, words} }

// mistake is a manifest, and the answers that its author gets.
type mistake struct {
	name, manifest string
	// server answers kubectl apply: a refusal, or warnings.
	server answer
	// validate is the command with -f; onNode with a node model, too, where that shows more.
	validate, onNode answer
	// explain is the command with -f.
	explain answer
}

// fields of manifests.
const (
	podHead = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: default}\nspec:\n"
	uses    = "  containers: [{name: c, image: i, resources: {claims: [{name: gpu}]}}]\n"
	claims  = "  resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]\n"
)

// pod has these lines as its spec.
func pod(spec ...string) string { return podHead + strings.Join(spec, "") }

func limits(text string) string {
	return pod("  containers: [{name: c, image: i, resources: {limits: {" + text + "}}}]\n")
}

func template(devices string) string {
	return "---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: t, namespace: default}\nspec: {spec: {devices: {" + devices + "}}}\n"
}

func asks(devices string) string { return pod(uses, claims) + template(devices) }

// request is one for devices of a class, with other fields.
func request(class string, more ...string) string {
	return "requests: [{name: gpu, exactly: {" + strings.Join(append([]string{"deviceClassName: " + class}, more...), ", ") + "}}]"
}

func selecting(expression string) string {
	return asks(request("gpu.cleave.dev", fmt.Sprintf("selectors: [{cel: {expression: %q}}]", expression)))
}

func given(request, driver, parameters string) string {
	return asks(request + ", config: [{opaque: {driver: " + driver + ", parameters: {" + parameters + "}}}]")
}

const shareConfig = "apiVersion: gpu.cleave.dev/v1alpha1, kind: ShareConfig, "

// mistakesBed has the chart's policies, and a node of 8 H100 of which three are allocated.
type mistakesBed struct {
	*bed
	kube kubernetes.Interface
	said warnings
}

// TestMistakes: of each of the mistakes that people make, its author is told before the pod waits or runs without its GPUs: by the API
// server with the chart's policies, by cleave validate without a cluster, and by cleave explain on it.
func TestMistakes(t *testing.T) {
	b := newMistakesBed(t)
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "manifest.yaml")
			must(t, os.WriteFile(path, []byte(m.manifest), 0o600))
			b.server(t, m.manifest).want(t, "the API server", m.server)
			command(t.Context(), "validate", "-f", path).want(t, "validate", m.validate)
			if m.onNode.words != nil {
				command(t.Context(), "validate", "-f", path, "--node-model", "hgx-h100").want(t, "validate on a node", m.onNode)
			}
			command(t.Context(), "explain", "-f", path, "-n", namespace, "--kubeconfig", b.kubeconfig).want(t, "explain", m.explain)
		})
	}
}

// want compares an answer with the one that it should be.
func (a answer) want(t *testing.T, who string, want answer) {
	t.Helper()
	text := strings.Join(a.words, "\n")
	wrong := a.code != want.code || len(want.words) == 0 && text != ""
	for _, w := range want.words {
		wrong = wrong || !strings.Contains(text, w)
	}
	if wrong {
		t.Errorf("%s: code %d, want %d and %q; it says\n%s", who, a.code, want.code, want.words, text)
	}
}

func command(ctx context.Context, args ...string) answer {
	var out bytes.Buffer
	code := cli.Run(ctx, commands.New("cleave"), args, &out, &out)
	return answer{code, []string{out.String()}}
}

func newMistakesBed(t *testing.T) *mistakesBed {
	t.Helper()
	b := &mistakesBed{bed: newBed(t, "n1")}
	config, err := b.control.RESTConfig()
	must(t, err)
	config.WarningHandler = &b.said
	b.kube, err = kubernetes.NewForConfig(config)
	must(t, err)
	b.applyChart("admission.warnings.enabled=true", "admission-claims", "admission-warnings")
	client := workload.Client{Kube: b.bed.kube}
	for i, device := range wholeGPUs(b.bed, "n1")[:3] {
		_, err := client.Allocate(t.Context(), namespace, fmt.Sprint("holder-", i), workload.OneGPU("n1", device, false))
		must(t, err)
	}
	// The API server takes some time to know policies.
	must(t, workload.Until(t.Context(), "the policies to hold", func(context.Context) (bool, string, error) {
		refused := b.server(t, asks(request("mps.cleave.dev", "count: 2")))
		warned := b.server(t, pod("  containers: [{name: c, image: i}]\n", claims)+template(request("gpus.cleave.dev")))
		return refused.code == 1 && len(warned.words) == 2, fmt.Sprint(refused, warned), nil
	}))
	return b
}

// wholeGPUs are the names of the GPUs that a node publishes whole.
func wholeGPUs(b *bed, node string) (names []string) {
	b.t.Helper()
	for _, s := range slicesOf(b, node).Items {
		for _, d := range s.Spec.Devices {
			if *d.Attributes["type"].StringValue == string(gpu.TypeGPU) {
				names = append(names, d.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// server is what the API server says of the objects of a manifest, as kubectl apply sends them, without their storage.
func (b *mistakesBed) server(t *testing.T, manifest string) answer {
	t.Helper()
	a := answer{}
	for document := range strings.SplitSeq(manifest, "---\n") {
		of := &metav1.PartialObjectMetadata{}
		must(t, yaml.Unmarshal([]byte(document), of))
		body, err := yaml.YAMLToJSON([]byte(document))
		must(t, err)
		group, resource := b.kube.ResourceV1().RESTClient(), map[string]string{
			"Pod": "pods", "ResourceClaim": "resourceclaims", "ResourceClaimTemplate": "resourceclaimtemplates",
		}[of.Kind]
		if of.APIVersion == "v1" {
			group = b.kube.CoreV1().RESTClient()
		}
		b.said = nil
		err = group.Post().Namespace(namespace).Resource(resource).Param("dryRun", "All").Param("fieldValidation", "Strict").
			SetHeader("Content-Type", "application/json").Body(body).Do(t.Context()).Error()
		for _, w := range b.said {
			a.words = append(a.words, "Warning: "+w)
		}
		if err != nil {
			if apierrors.IsInternalError(err) {
				t.Fatal(err)
			}
			a.code, a.words = 1, append(a.words, err.Error())
		}
	}
	return a
}

// What a container gets beside an MPS share is known once the template of its claim is stored: then the author of the pod is warned. Two
// containers with a request each are not.
func TestMistakes_MPS(t *testing.T) {
	b := newMistakesBed(t)
	stored := &resourceapi.ResourceClaimTemplate{}
	must(t, yaml.UnmarshalStrict([]byte(strings.TrimPrefix(template(shareAndGPU), "---\n")), stored))
	_, err := b.kube.ResourceV1().ResourceClaimTemplates(namespace).Create(t.Context(), stored, metav1.CreateOptions{})
	must(t, err)
	both := pod(uses, claims)
	must(t, workload.Until(t.Context(), "the policy to know the template", func(context.Context) (bool, string, error) {
		said := b.server(t, both)
		return len(said.words) > 0, fmt.Sprint(said), nil
	}))
	b.server(t, both).want(t, "the API server", ok("container c gets an MPS share and other devices of ResourceClaimTemplate t: "+wasted+", which names its request in resources.claims"))
	apart := "  containers: [{name: c, image: i, resources: {claims: [{name: gpu, request: share}]}}, {name: d, image: i, resources: {claims: [{name: gpu, request: whole}]}}]\n"
	b.server(t, pod(apart, claims)).want(t, "the API server", ok())
}

// A claim that a user deletes while a pod has it stays until the pod has ended: kubectl delete waits, and says nothing.
func TestMistakes_ClaimDeleted(t *testing.T) {
	b := newBed(t, "n1")
	b.startScheduler("{}")
	b.addPods("user", "gpu.cleave.dev", 1)
	b.scheduled(1)
	must(t, b.kube.ResourceV1().ResourceClaims(namespace).Delete(t.Context(), "user-0", metav1.DeleteOptions{}))
	for _, of := range []string{"claim", "pod"} {
		command(t.Context(), "explain", of, "user-0", "-n", namespace, "--kubeconfig", b.kubeconfig).want(t, "explain "+of,
			ok("being deleted"))
	}
}
