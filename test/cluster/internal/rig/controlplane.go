// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster/internal/control"
	"cloudnative.tw/drover/test/cluster/internal/plan"
	"cloudnative.tw/drover/test/cluster/internal/processes"
)

// Programs of the control plane.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
)

// addControlPlane adds the control plane's programs to a group.
func addControlPlane(p plan.Plan, group *processes.Group) {
	for name, args := range map[string][]string{
		etcd:              etcdArgs(p),
		apiServer:         apiServerArgs(p),
		controllerManager: controllerManagerArgs(p),
		scheduler:         schedulerArgs(p),
	} {
		group.Add(name, p.Program(name), p.Path("logs", name+".log"), args...)
	}
}

func etcdArgs(p plan.Plan) []string {
	return []string{
		"--data-dir=" + p.Path("etcd"),
		"--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380",
		"--log-level=warn",
	}
}

func apiServerArgs(p plan.Plan) []string {
	pki := func(file string) string { return p.Path("pki", file) }
	args := []string{
		"--tls-cert-file=" + pki("kube-apiserver.crt"), "--tls-private-key-file=" + pki("kube-apiserver.key"),
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=" + p.ControlPlaneIP(), "--advertise-address=" + p.ControlPlaneIP(),
		fmt.Sprintf("--secure-port=%d", plan.APIPort),
		"--service-cluster-ip-range=" + plan.ServiceCIDR,
		"--client-ca-file=" + pki("ca.crt"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("sa.key"), "--service-account-signing-key-file=" + pki("sa.key"),
		"--kubelet-client-certificate=" + pki("admin.crt"), "--kubelet-client-key=" + pki("admin.key"),
		"--kubelet-certificate-authority=" + pki("ca.crt"),
		// There is no DNS for the names of nodes.
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki("front-proxy-client.crt"), "--proxy-client-key-file=" + pki("front-proxy-client.key"),
		// Service addresses are not routed here.
		"--enable-aggregator-routing=true",
		// Pods are evicted from a lost node soon.
		"--default-unreachable-toleration-seconds=2", "--default-not-ready-toleration-seconds=2",
	}
	if p.Simulated {
		args = append(args, "--request-timeout=30m") // one request deletes 10,000 objects
	}
	return args
}

func controllerManagerArgs(p plan.Plan) []string {
	args := append(clientArgs(p, controllerManager),
		"--leader-elect=false", "--use-service-account-credentials",
		"--service-account-private-key-file="+p.Path("pki", "sa.key"), "--root-ca-file="+p.Path("pki", "ca.crt"),
		"--cluster-signing-cert-file="+p.Path("pki", "ca.crt"), "--cluster-signing-key-file="+p.Path("pki", "ca.key"),
		"--kube-api-qps=200", "--kube-api-burst=400",
	)
	if p.Simulated {
		return append(args, "--node-monitor-grace-period=15m") // simulated nodes renew their Leases seldom
	}
	// A lost node is noticed soon.
	return append(args, "--node-monitor-grace-period=6s", "--node-monitor-period=1s")
}

func schedulerArgs(p plan.Plan) []string {
	args := append(clientArgs(p, scheduler), "--leader-elect=false")
	if p.Simulated {
		args = append(args, "--kube-api-qps=2000", "--kube-api-burst=4000")
	}
	return args
}

func clientArgs(p plan.Plan, name string) []string {
	kubeconfig := p.Path("pki", name+".kubeconfig")
	return []string{
		"--bind-address=127.0.0.1", "--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
	}
}

// waitForAPI waits until kube-apiserver is ready, because the controller manager would exit
// without it.
func waitForAPI(ctx context.Context, p plan.Plan, group *processes.Group) error {
	ca, err := os.ReadFile(p.Path("pki", "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
	}
	ctx, cancel := control.WithEnd(ctx, group.Ended(apiServer))
	defer cancel()
	err = assert.Poll(ctx, "kube-apiserver is ready", func() error { return checkReady(ctx, client, p.Server()+"/readyz") })
	if err != nil {
		err = fmt.Errorf("%w: see %s", err, p.Path("logs", apiServer+".log"))
	}
	return err
}

func checkReady(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	return assert.ErrorUnless(response.StatusCode == http.StatusOK, "GET %s: %s", url, response.Status)
}
