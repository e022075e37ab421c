// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	cliflag "k8s.io/component-base/cli/flag"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"cloudnative.tw/drover/standalone/internal/pki"
	"cloudnative.tw/drover/standalone/internal/storequota"
)

// issuer is the issuer of service-account tokens.
const issuer = "https://kubernetes.default.svc.cluster.local"

// apiServerArgs returns the flags of kube-apiserver. Kubernetes documents its flags and keeps them stable,
// unlike the fields that they set.
func (c *Config) apiServerArgs(etcd string) []string {
	args := []string{
		"--etcd-servers=" + etcd,
		"--etcd-compaction-interval=0", // the keeper of the store removes history
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--authorization-mode=RBAC",
		"--anonymous-auth=false",
		"--client-ca-file=" + c.Keys.CABundle(),
		"--tls-cert-file=" + c.Keys.Serving(),
		"--tls-private-key-file=" + c.Keys.Serving(),
		"--tls-min-version=VersionTLS13",
		"--service-account-issuer=" + issuer,
		"--service-account-key-file=" + c.Keys.ServiceAccountKey(),
		"--service-account-signing-key-file=" + c.Keys.ServiceAccountKey(),
		"--service-cluster-ip-range=10.0.0.0/24",
		"--profiling=false",
		// Without these flags, long watches would delay a stop by a minute. With them, clients are
		// told to retry later, and watches close after two seconds.
		"--shutdown-send-retry-after=true",
		"--shutdown-watch-termination-grace-period=2s",
	}
	if c.AllAPIs {
		return args
	}
	return append(args,
		// Otherwise the quota controller would list DeviceClasses and ResourceClaims, which are not served.
		"--feature-gates=DRAExtendedResource=false",
		"--runtime-config="+strings.Join(unservedGroups(), ","),
		"--disable-admission-plugins="+strings.Join(unusedAdmission(), ","))
}

// unservedGroups returns the flags that turn off the API groups about pods on nodes. Drover does
// not run nodes, so objects of these groups would be accepted and then ignored. Without the
// groups, the API is ready sooner and takes less memory.
func unservedGroups() []string {
	var off []string
	for _, version := range []string{
		"apps/v1", "autoscaling/v1", "autoscaling/v2", "batch/v1", "certificates.k8s.io/v1",
		"node.k8s.io/v1", "policy/v1", "resource.k8s.io/v1", "scheduling.k8s.io/v1", "storage.k8s.io/v1",
	} {
		off = append(off, version+"=false")
	}
	return off
}

// unusedAdmission returns the admission plugins that would wait for the groups of unservedGroups.
func unusedAdmission() []string {
	return []string{
		"Priority", "RuntimeClass", "DefaultStorageClass", "PersistentVolumeClaimResize",
		"StorageObjectInUseProtection", "PodGroupProtection", "PodGroupWorkloadExists", "JobValidation",
		"TaintNodesByCondition", "DefaultTolerationSeconds", "PodTopologyLabels", "NodeDeclaredFeatureValidator",
		"PodResizeValidator", "CertificateApproval", "CertificateSigning", "CertificateSubjectRestriction",
		"ClusterTrustBundleAttest", "DefaultIngressClass", "PodSecurity",
	}
}

// runAPIServer returns a function that runs kube-apiserver. It does not use the command of
// kube-apiserver, which would handle the signals of the process.
func (c *Config) runAPIServer(etcd string) func(context.Context) error {
	return func(ctx context.Context) error {
		s := options.NewServerRunOptions()
		storequota.Register(s.Admission.GenericAdmission, c.accounts, pki.ControllerName, pki.ControllerManagerName)
		if err := parseFlags("kube-apiserver", s.Flags(), c.apiServerArgs(etcd)); err != nil {
			return err
		}
		c.useListener(s)
		if err := s.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
			return err
		}
		completed, err := s.Complete(ctx)
		if err != nil {
			return err
		}
		if errs := completed.Validate(); len(errs) > 0 {
			return utilerrors.NewAggregate(errs)
		}
		return c.runWithCertificates(ctx, func(ctx context.Context) error {
			return c.serveAPI(ctx, completed)
		})
	}
}

// serveAPI does the same as app.Run of kube-apiserver, and also serves streams and the usage of the
// store.
func (c *Config) serveAPI(ctx context.Context, opts options.CompletedOptions) error {
	config, err := app.NewConfig(opts)
	if err != nil {
		return err
	}
	markStreamsLong(config.Aggregator)
	c.refundWrites(config.Aggregator)
	completed, err := config.Complete()
	if err != nil {
		return err
	}
	server, err := app.CreateServerChain(completed)
	if err != nil {
		return err
	}
	c.serveUsage(server)
	if c.Streams != nil {
		serveStreams(server, c.Streams)
	}
	prepared, err := server.PrepareRun()
	if err != nil {
		return err
	}
	return prepared.Run(ctx)
}

// refundWrites lets the accounts see the answers to all requests. It wraps the handler of the
// aggregator, which is the first to get a request.
func (c *Config) refundWrites(config *aggregator.Config) {
	build := config.GenericConfig.BuildHandlerChainFunc
	config.GenericConfig.BuildHandlerChainFunc = func(api http.Handler, generic *server.Config) http.Handler {
		return build(c.accounts.WithRefunds(api), generic)
	}
}

func (c *Config) useListener(s *options.ServerRunOptions) {
	s.SecureServing.Listener = c.Listener
	if addr, ok := c.Listener.Addr().(*net.TCPAddr); ok {
		s.SecureServing.BindAddress = addr.IP
		s.SecureServing.BindPort = addr.Port
	}
}

func parseFlags(name string, sets cliflag.NamedFlagSets, args []string) error {
	all := pflag.NewFlagSet(name, pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		all.AddFlagSet(set)
	}
	return all.Parse(args)
}

// waitForAPI waits until the API is ready, and stores the ID of the cluster.
func (c *Config) waitForAPI(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.ClientConfig(c.Keys.Admin()))
	if err != nil {
		return err
	}
	err = c.waitFor(ctx, func(ctx context.Context) error {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return c.waitFor(ctx, func(ctx context.Context) error {
		return c.storeClusterID(ctx, client)
	})
}

func (c *Config) storeClusterID(ctx context.Context, client kubernetes.Interface) error {
	ns, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := c.Dir.SetClusterID(string(ns.UID)); err != nil {
		return fmt.Errorf("store the cluster's id: %w", err)
	}
	return nil
}
