// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// vmsPath is the path of all VirtualMachines of a cluster.
const vmsPath = "/apis/cloudnative.tw/v1alpha1/virtualmachines"

// worldsByName has the worlds that send requests.
type worldsByName struct{ byName sync.Map }

func (s *worldsByName) find(name string) *World {
	w, ok := s.byName.Load(name)
	if !ok {
		return nil
	}
	return w.(*World)
}

// newProxy returns a handler that makes two namespaces of the API server look like a
// cluster: one has all VirtualMachines, the other stands for kube-system. The
// first element of a request's path is the world's name.
func newProxy(config *rest.Config, worlds *worldsByName) (http.Handler, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	forward := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(server) },
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		name, path, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
		w := worlds.find(name)
		if w == nil {
			http.NotFound(rw, req)
			return
		}
		w.recordRequest(req.Method, "/"+path)
		req.URL.Path, req.URL.RawPath = w.realPath("/"+path), ""
		if err := w.rewriteBody(req); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		forward.ServeHTTP(rw, req)
	}), nil
}

// realPath returns where the API server has what a controller means.
func (w *World) realPath(path string) string {
	if path == vmsPath {
		return "/apis/cloudnative.tw/v1alpha1/namespaces/" + w.Name + "/virtualmachines"
	}
	before, after, found := strings.Cut(path, "/namespaces/"+metav1.NamespaceSystem)
	if found && (after == "" || after[0] == '/') {
		return before + "/namespaces/" + w.System + after
	}
	return path
}

// rewriteBody replaces the namespace in an object that is written. Both names have the
// same length, so that this works for every encoding.
func (w *World) rewriteBody(req *http.Request) error {
	if !strings.Contains(req.URL.Path, "/namespaces/"+w.System+"/") || req.Method == http.MethodGet {
		return nil
	}
	content, err := io.ReadAll(req.Body)
	if err != nil {
		return err
	}
	req.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(content, []byte(metav1.NamespaceSystem), []byte(w.System))))
	return nil
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
