// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"
)

const (
	// clusterTimeout bounds each request to the API server.
	clusterTimeout = 30 * time.Second
	// pageSize bounds the objects of an answer: a ResourceSlice decodes to some 400 KiB.
	pageSize = 100
)

// clientFlags select a cluster as those of kubectl do.
type clientFlags struct {
	kubeconfig, context, namespace string
}

// add adds the flags; use is the use of the command that they are for.
func (f *clientFlags) add(flags *pflag.FlagSet, use string) {
	flags.StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig file"+use+"; empty for $KUBECONFIG, ~/.kube/config, or the pod's service account")
	flags.StringVar(&f.context, "context", "", "context of the kubeconfig file"+use+"; empty for its current one")
}

// config finds the API server like kubectl: by the given file, $KUBECONFIG, ~/.kube/config, or the pod's service account. The
// namespace is the flag's, else the context's.
func (f *clientFlags) config() (config *rest.Config, namespace string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.context}
	overrides.Context.Namespace = f.namespace
	source := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	if config, err = source.ClientConfig(); err != nil {
		return nil, "", fmt.Errorf("find the API server (set --kubeconfig or KUBECONFIG): %w", err)
	}
	if namespace, _, err = source.Namespace(); err != nil {
		return nil, "", fmt.Errorf("find the namespace (set --namespace): %w", err)
	}
	config.Timeout = clusterTimeout
	config.QPS = -1 // pages follow one another; the API server limits by itself
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config, namespace, nil
}

// client is a client for the API server that config finds.
func (f *clientFlags) client() (client kubernetes.Interface, namespace string, err error) {
	config, namespace, err := f.config()
	if err != nil {
		return nil, "", err
	}
	if client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, "", fmt.Errorf("create a client for the API server at %s: %w", config.Host, err)
	}
	return client, namespace, nil
}

// each lists objects page by page: do may keep its argument.
func each[T any, L runtime.Object](
	ctx context.Context, what string, list func(context.Context, metav1.ListOptions) (L, error), do func(*T),
) error {
	pages := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) { return list(ctx, opts) })
	pages.PageSize, pages.PageBufferSize = pageSize, 0
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		if item, ok := o.(any).(*T); ok {
			do(item)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	return nil
}

// eachSlice lists the ResourceSlices of a selection page by page.
func eachSlice(ctx context.Context, client kubernetes.Interface, selector fields.Set, do func(*resourceapi.ResourceSlice)) error {
	return each(ctx, "ResourceSlices", func(ctx context.Context, opts metav1.ListOptions) (*resourceapi.ResourceSliceList, error) {
		opts.FieldSelector = selector.AsSelector().String()
		return client.ResourceV1().ResourceSlices().List(ctx, opts)
	}, do)
}

func listSlices(ctx context.Context, client kubernetes.Interface, selector fields.Set) ([]resourceapi.ResourceSlice, error) {
	var all []resourceapi.ResourceSlice
	err := eachSlice(ctx, client, selector, func(s *resourceapi.ResourceSlice) { all = append(all, *s) })
	return all, err
}
