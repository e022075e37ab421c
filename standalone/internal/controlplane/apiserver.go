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

// issuer of the service-account tokens.
const issuer = "https://kubernetes.default.svc.cluster.local"

// apiServerArgs returns flags rather than setting fields, because Kubernetes documents its flags
// and keeps them stable.
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
		// Long watches would delay a stop by a minute: clients get the response to retry
		// later, and watches close after two seconds.
		"--shutdown-send-retry-after=true",
		"--shutdown-watch-termination-grace-period=2s",
	}
	if c.AllAPIs {
		return args
	}
	return append(args,
		// Else the quota controller asks for DeviceClasses and ResourceClaims, which are not served.
		"--feature-gates=DRAExtendedResource=false",
		"--runtime-config="+strings.Join(unservedGroups(), ","),
		"--disable-admission-plugins="+strings.Join(unusedAdmission(), ","))
}

// unservedGroups returns groups about pods on nodes, of which Drover has none: their
// objects would be accepted and then ignored. Without these groups the API is ready
// sooner and takes less memory.
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

// unusedAdmission returns the admission plugins that would wait for those groups.
func unusedAdmission() []string {
	return []string{
		"Priority", "RuntimeClass", "DefaultStorageClass", "PersistentVolumeClaimResize",
		"StorageObjectInUseProtection", "PodGroupProtection", "PodGroupWorkloadExists", "JobValidation",
		"TaintNodesByCondition", "DefaultTolerationSeconds", "PodTopologyLabels", "NodeDeclaredFeatureValidator",
		"PodResizeValidator", "CertificateApproval", "CertificateSigning", "CertificateSubjectRestriction",
		"ClusterTrustBundleAttest", "DefaultIngressClass", "PodSecurity",
	}
}

// runAPIServer does not use the command of kube-apiserver, because that claims the
// process's signals.
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

// serveAPI is app.Run, except that streams are served.
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

// refundWrites has the accounts see the answers to requests, of which the aggregator is the
// first to get any.
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

// waitForAPI waits until the API is ready, and stores the cluster's id.
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
