// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"net"
	"path/filepath"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/test/assert"
)

// BuildAPIServer builds the kube-apiserver that bin/drover contains as a separate program.
func BuildAPIServer(binary string) error {
	return buildBinary(binary, "standalone", "k8s.io/kubernetes/cmd/kube-apiserver", nil)
}

// APIServer is a further kube-apiserver of a cluster.
type APIServer struct {
	*Process
	// Config connects as the cluster's admin user.
	Config *rest.Config
}

// EtcdSocket is where the cluster's etcd is reached.
func (c *Cluster) EtcdSocket() string { return filepath.Join(c.DataDir, "run", "etcd.sock") }

// StartAPIServer starts a further kube-apiserver, which reaches the cluster's etcd through a
// socket. The caller must Kill it.
func (c *Cluster) StartAPIServer(binary, etcdSocket string, args ...string) (*APIServer, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	pki := func(name string) string { return filepath.Join(c.DataDir, "pki", name) }
	args = append([]string{
		"--etcd-servers=unix://" + etcdSocket, "--bind-address=127.0.0.1", "--secure-port=" + port,
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", "--authorization-mode=RBAC", "--anonymous-auth=false",
		"--client-ca-file=" + pki("ca.crt"), "--tls-cert-file=" + pki("serving.pem"), "--tls-private-key-file=" + pki("serving.pem"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-key-file=" + pki("service-account.key"), "--service-account-signing-key-file=" + pki("service-account.key"),
	}, args...)
	process, err := StartProcess(binary, args, nil)
	if err != nil {
		return nil, err
	}
	s := &APIServer{process, rest.CopyConfig(c.Config)}
	s.Config.Host = "https://" + l.Addr().String()
	if err := s.waitUntilReady(); err != nil {
		return nil, errors.Join(err, s.Kill(), errors.New(s.Output()))
	}
	return s, nil
}

func (s *APIServer) waitUntilReady() error {
	client, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		return err
	}
	ctx := context.Background()
	err = assert.Poll(ctx, "kube-apiserver is ready", func() error {
		if s.HasEnded() {
			return nil // whoever uses it notices
		}
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err == nil && s.HasEnded() {
		err = errors.New("kube-apiserver ended before it was ready")
	}
	return err
}
