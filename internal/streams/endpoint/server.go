// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package endpoint serves streams at a separate address, for clusters whose API server is
// not Drover's.
//
// Start with New in server.go. authenticate.go asks who a client is, and publish.go says in a
// ConfigMap where the endpoint is.
package endpoint

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// The files of Options.CertDir, named as in a Secret of type kubernetes.io/tls.
const (
	certFile = "tls.crt"
	keyFile  = "tls.key"
	caFile   = "ca.crt"
)

const (
	headerTimeout = 10 * time.Second
	// maxHeader allows commands of a length that people type.
	maxHeader = 64 << 10
	// maxStrangers is how many connections may be open whose client is not known.
	maxStrangers = 256
	// spareConnections are connections of users for other requests than streams, such as lists.
	spareConnections = 256
)

// Options are the settings of an endpoint.
type Options struct {
	// Address to listen on.
	Address string
	// CertDir has tls.crt and tls.key, and ca.crt for clients. The files are read again when
	// they change.
	CertDir string
	// URL is the address that clients are given, in a ConfigMap.
	URL string
	// Drivers are the names of the drivers whose streams are served.
	Drivers []string
	// Streams is how many streams Handler serves at a time, and StreamsPerVM how many of one
	// VirtualMachine.
	Streams, StreamsPerVM int
	Handler               http.Handler
	// Config and HTTPClient connect to the API server, as Client and Live do.
	Config     *rest.Config
	HTTPClient *http.Client
	Client     client.Client
	Live       client.Reader
	Clock      clock.WithTicker
	Log        logr.Logger
}

// New opens the endpoint. Adding the result to a manager serves it.
func New(ctx context.Context, o Options) ([]manager.Runnable, error) {
	certificate, err := certwatcher.New(filepath.Join(o.CertDir, certFile), filepath.Join(o.CertDir, keyFile))
	if err != nil {
		return nil, fmt.Errorf("--streams-cert-dir: %w", err)
	}
	if _, err := readCA(o.CertDir); err != nil {
		return nil, fmt.Errorf("--streams-cert-dir: %w", err)
	}
	ca := &clientCA{Options: o}
	clients, err := newClients(o, ca)
	if err != nil {
		return nil, err
	}
	opened, err := listenConfig().Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("--streams-address: %w", err)
	}
	counted := listener{Listener: opened, connections: newConnections(o.Streams, o.StreamsPerVM)}
	return []manager.Runnable{certificate, ca, &publisher{Options: o}, &manager.Server{
		Name: "streams", Listener: tls.NewListener(counted, tlsConfig(certificate)), ShutdownTimeout: new(time.Second),
		Server: newServer(clients, o.Log),
	}}, nil
}

// newServer returns a server that closes each connection after one request, so that none stays
// open idle.
func newServer(handler http.Handler, log logr.Logger) *http.Server {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeader, ConnContext: withConnection,
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(log.V(1)), slog.LevelInfo), // about clients that break off
	}
	server.SetKeepAlivesEnabled(false)
	return server
}

// tlsConfig allows HTTP/1.1 alone, the version that has WebSockets. A client certificate is
// checked for each request, by the authenticator, since the cluster's CA may change.
func tlsConfig(certificate *certwatcher.CertWatcher) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: certificate.GetCertificate, ClientAuth: tls.RequestClientCert,
	}
}
