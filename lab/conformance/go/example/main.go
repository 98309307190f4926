// The example of docs/clients.md: example ADDRESS,ADDRESS,... TABLE
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/apache/incubator-pegasus/go-client/pegasus"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client := pegasus.NewClient(pegasus.Config{MetaServers: strings.Split(os.Args[1], ",")})
	defer client.Close()
	table, err := client.OpenTable(ctx, os.Args[2])
	if err != nil {
		log.Fatal(err)
	}

	user := []byte("user-17")
	if err := table.SetTTL(ctx, user, []byte("name"), []byte("Ada"), time.Hour); err != nil {
		log.Fatal(err)
	}
	if err := table.Set(ctx, user, []byte("city"), []byte("Paris")); err != nil {
		log.Fatal(err)
	}
	// A record that does not exist is nil, and no error.
	name, err := table.Get(ctx, user, []byte("name"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("name", string(name))

	scanner, err := table.GetScanner(ctx, user, nil, nil, pegasus.NewScanOptions())
	if err != nil {
		log.Fatal(err)
	}
	defer scanner.Close()
	for {
		completed, _, sortKey, value, err := scanner.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if completed {
			break
		}
		fmt.Println(string(sortKey), string(value))
	}
}
