// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	client "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// Version is the version of the program, set by the build.
var Version = "dev"

// requestTimeout is the default of --request-timeout, for one request. Streams and watches are not
// limited.
const requestTimeout = "30s"

// Options has the flags, streams and clients that all verbs share.
type Options struct {
	genericiooptions.IOStreams // Out is a printable.Output, which remembers a failed write
	// Config has kubectl's flags: --context, --namespace and so on.
	Config *genericclioptions.ConfigFlags
	// Clock is the clock for ages, waits and redraws.
	Clock clock.WithTicker
	// Self is the command with which ssh starts this program again; nil means the running file.
	Self []string
	// Program and Kubectl are the commands with which users call this program and kubectl, for help
	// and advice.
	Program, Kubectl string
	// DefaultKubeconfig returns the kubeconfig to use if the user does not name one. If the result
	// is empty or the function is nil, the rules of kubectl apply.
	DefaultKubeconfig func() (string, error)

	kubeconfigOnce sync.Once
	kubeconfigErr  error      // of DefaultKubeconfig
	mu             sync.Mutex // guards vmClient
	vmClient       rest.Interface
}

// NewOptions returns the options of kubectl-vm.
func NewOptions(streams genericiooptions.IOStreams) *Options {
	streams.Out = printable.NewOutput(streams.Out)
	config := genericclioptions.NewConfigFlags(true).WithWarningPrinter(streams)
	config.CacheDir = nil // the flag is for discovery, which no verb needs
	config.Timeout = new(requestTimeout)
	return &Options{IOStreams: streams, Config: config, Clock: clock.RealClock{}, Program: "kubectl vm", Kubectl: "kubectl"}
}

// WithOutput returns options that print to another stream.
func (o *Options) WithOutput(out io.Writer) *Options {
	other := &Options{IOStreams: o.IOStreams, Config: o.Config, Clock: o.Clock, Program: o.Program, Kubectl: o.Kubectl, Self: o.Self, DefaultKubeconfig: o.DefaultKubeconfig}
	other.Out = out
	return other
}

// Namespace returns the namespace of --namespace, or else the namespace of the kubeconfig.
func (o *Options) Namespace() (string, error) {
	if err := o.useDefaultKubeconfig(); err != nil {
		return "", err
	}
	ns, _, err := o.Config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", fmt.Errorf("find the namespace: %w", err)
	}
	return ns, nil
}

// NamespaceOrAll returns the namespace to list, or "" for all namespaces if all is set.
func (o *Options) NamespaceOrAll(all bool) (string, error) {
	if all {
		return metav1.NamespaceAll, nil
	}
	return o.Namespace()
}

// RESTConfig returns the configuration of clients for the cluster. Its timeout bounds one request. A
// caller that opens a stream or a watch sets the timeout to 0.
func (o *Options) RESTConfig() (*rest.Config, error) {
	if err := o.useDefaultKubeconfig(); err != nil {
		return nil, err
	}
	config, err := o.Config.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	config.UserAgent = "kubectl-vm/" + Version
	config.QPS = -1 // the API server limits requests itself
	config.WarningHandler = rest.NewWarningWriter(o.ErrOut, rest.WarningWriterOptions{Deduplicate: true, Color: TerminalOf(o.ErrOut).HasColors})
	// If the API server is on this host, compression costs more than it saves.
	config.DisableCompression = config.DisableCompression || isLocal(config.Host)
	return config, nil
}

// useDefaultKubeconfig applies DefaultKubeconfig before the first use of Config.
func (o *Options) useDefaultKubeconfig() error {
	o.kubeconfigOnce.Do(func() {
		if o.DefaultKubeconfig != nil && *o.Config.KubeConfig == "" {
			*o.Config.KubeConfig, o.kubeconfigErr = o.DefaultKubeconfig()
		}
	})
	return o.kubeconfigErr
}

// Contexts returns the names of the contexts of the kubeconfig.
func (o *Options) Contexts() ([]string, error) {
	if err := o.useDefaultKubeconfig(); err != nil {
		return nil, err
	}
	config, err := o.Config.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(config.Contexts)), nil
}

// VMs returns a client for the VirtualMachines of a namespace, or of all namespaces if it is "".
func (o *Options) VMs(namespace string) (client.VirtualMachineInterface, error) {
	c, err := o.VMClient()
	if err != nil {
		return nil, err
	}
	return client.New(c).VirtualMachines(namespace), nil
}

// VMClient returns the REST client for VirtualMachines.
func (o *Options) VMClient() (rest.Interface, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.vmClient != nil {
		return o.vmClient, nil
	}
	config, err := o.RESTConfig()
	if err != nil {
		return nil, err
	}
	c, err := client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	o.vmClient = c.RESTClient()
	return o.vmClient, nil
}

// WatchVMs returns a client like VMs, but without a timeout, which would end a watch.
func (o *Options) WatchVMs(namespace string) (client.VirtualMachineInterface, error) {
	config, err := o.RESTConfig()
	if err != nil {
		return nil, err
	}
	config.Timeout = 0
	c, err := client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	return c.VirtualMachines(namespace), nil
}

// Core returns a client for events, Secrets and ConfigMaps.
func (o *Options) Core() (rest.Interface, error) {
	return o.NewGroupClient("/api", corev1.SchemeGroupVersion, corev1.AddToScheme)
}

// NewGroupClient returns a client for one API group. A clientset for all groups would take longer to
// initialize than most verbs take to run.
func (o *Options) NewGroupClient(path string, group schema.GroupVersion, addTo func(*runtime.Scheme) error) (rest.Interface, error) {
	config, err := o.RESTConfig()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := addTo(scheme); err != nil {
		return nil, fmt.Errorf("register API %s: %w", group, err)
	}
	config.APIPath, config.GroupVersion = path, &group
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	return c, nil
}

// isLocal reports whether the host of a URL is this host.
func isLocal(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || (err == nil && ip.IsLoopback())
}
