// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// VirtualCluster is two namespaces of a cluster that look like a whole cluster to a client whose requests are redirected.
type VirtualCluster struct {
	// Namespace has all VirtualMachines and events.
	Namespace string
	// System replaces kube-system, so that its UID is the cluster's id. Both names have the same length.
	System string
}

// Redirect changes a request for a whole cluster into a request for these namespaces.
func (v VirtualCluster) Redirect(req *http.Request) error {
	req.URL.Path, req.URL.RawPath = v.realPath(req.URL.Path), ""
	if !strings.Contains(req.URL.Path, "/namespaces/"+v.System+"/") || req.Method == http.MethodGet {
		return nil
	}
	content, err := io.ReadAll(req.Body)
	if err != nil {
		return err
	}
	// As both names have the same length, this works for every encoding.
	req.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(content, []byte(metav1.NamespaceSystem), []byte(v.System))))
	return nil
}

func (v VirtualCluster) realPath(path string) string {
	switch path {
	case "/apis/cloudnative.tw/v1alpha1/virtualmachines", "/apis/events.k8s.io/v1/events":
		group, resource := path[:strings.LastIndexByte(path, '/')], path[strings.LastIndexByte(path, '/'):]
		return group + "/namespaces/" + v.Namespace + resource
	}
	before, after, found := strings.Cut(path, "/namespaces/"+metav1.NamespaceSystem)
	if found && (after == "" || after[0] == '/') {
		return before + "/namespaces/" + v.System + after
	}
	return path
}

// VirtualClusters serves any number of virtual clusters, which cost much less than real ones.
type VirtualClusters struct {
	cluster *Cluster
	server  *http.Server
	address net.Addr
	dir     string

	mu     sync.Mutex
	all    map[string]VirtualCluster // by the secret that is the first element of requests' paths
	writes map[VirtualCluster]int
}

// ServeVirtual serves virtual clusters. The caller must Close them before the cluster.
func (c *Cluster) ServeVirtual() (*VirtualClusters, error) {
	transport, err := rest.TransportFor(c.Config)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(c.Config.Host)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "drover-virtual-")
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	v := &VirtualClusters{cluster: c, address: listener.Addr(), dir: dir, all: map[string]VirtualCluster{}, writes: map[VirtualCluster]int{}}
	quiet := log.New(io.Discard, "", 0)
	v.server = &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: quiet, Handler: v.redirectTo(&httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: quiet,
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})}
	go func() { _ = v.server.Serve(listener) }()
	return v, nil
}

func (v *VirtualClusters) redirectTo(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		secret, path, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
		v.mu.Lock()
		virtual, known := v.all[secret]
		if req.Method != http.MethodGet && (strings.Contains(path, "/virtualmachines") || strings.Contains(path, "/events")) {
			v.writes[virtual]++
		}
		v.mu.Unlock()
		if !known {
			http.NotFound(rw, req)
			return
		}
		req.URL.Path = "/" + path
		if err := virtual.Redirect(req); err != nil {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(rw, req)
	})
}

// New returns another virtual cluster, whose kubeconfig has its namespace as the default one. Close ends
// it.
func (v *VirtualClusters) New(ctx context.Context) (*Cluster, VirtualCluster, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, secret := len(v.all), string(uuid.NewUUID())
	virtual := VirtualCluster{Namespace: fmt.Sprintf("virtual-%d", n), System: fmt.Sprintf("sys-%07d", n)}
	client, err := kubernetes.NewForConfig(v.cluster.Config)
	if err != nil {
		return nil, virtual, err
	}
	for _, name := range []string{virtual.Namespace, virtual.System} {
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return nil, virtual, err
		}
	}
	v.all[secret] = virtual
	c := &Cluster{
		Config:     &rest.Config{Host: fmt.Sprintf("http://%s/%s", v.address, secret), QPS: -1},
		Kubeconfig: filepath.Join(v.dir, virtual.Namespace), DataDir: v.cluster.DataDir, binary: v.cluster.binary,
	}
	return c, virtual, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"virtual": {Server: c.Config.Host}},
		Contexts:       map[string]*clientcmdapi.Context{"virtual": {Cluster: "virtual", Namespace: virtual.Namespace}},
		CurrentContext: "virtual",
	}, c.Kubeconfig)
}

// CountWrites returns how many requests wrote VirtualMachines and events of a virtual cluster.
func (v *VirtualClusters) CountWrites(cluster VirtualCluster) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.writes[cluster]
}

// Close ends the virtual clusters, but not the real one.
func (v *VirtualClusters) Close() error { return errors.Join(v.server.Close(), os.RemoveAll(v.dir)) }
