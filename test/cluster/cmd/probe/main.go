// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command probe is the program that tests run in pods, whose images have no shell.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `usage:
  probe serve [ADDRESS]   answer at ADDRESS (:8080) with the name of the host
  probe get URL           print what a server answers; https as the pod's ServiceAccount`

const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	args = append(args, "", "")
	switch args[0] {
	case "serve":
		return serve(ctx, args[1])
	case "get":
		return get(ctx, args[1])
	}
	return errors.New(usage)
}

func serve(ctx context.Context, address string) error {
	if address == "" {
		address = ":8080"
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		host, _ := os.Hostname()
		_, _ = fmt.Fprintln(w, host)
	})
	server := &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: time.Minute}
	fmt.Println("serving at", address)
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func get(ctx context.Context, url string) error {
	roots := x509.NewCertPool()
	if ca, err := os.ReadFile(serviceAccount + "ca.crt"); err == nil {
		roots.AppendCertsFromPEM(ca)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token, err := os.ReadFile(serviceAccount + "token"); err == nil && request.URL.Scheme == "https" {
		request.Header.Set("Authorization", "Bearer "+string(token))
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
